"""Set and record everything that may change the bits of a result.

Promises: after `prepare` the thread count and torch's deterministic switches are those in `Environment`.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from blake3 import blake3
from msgspec.structs import replace

import tolariad
from tolariad.core import messages as m
from tolariad.trainer.errors import SetupRefused

if TYPE_CHECKING:
    from torch import nn

    from tolariad.core.calc.settings.model import Settings

Grade = Literal["strict", "warn", "off"]


def chosen_device(settings: Settings, rank: int = 0, ranks: int = 1) -> torch.device:
    """Return the configured device; each rank has one of its own. Raises SetupRefused if the machine has it not."""
    if settings.device == "auto" and not torch.cuda.is_available():
        return torch.device("cpu")
    if ranks > 1 and settings.device in ("auto", "cuda"):
        settings = replace(settings, device=f"cuda:{rank}")
    if settings.device == "auto":
        return torch.device("cuda:0")
    device = torch.device(settings.device)
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise SetupRefused(
            f"device: {settings.device} was asked for, but torch sees no CUDA device here; use cpu or auto"
        )
    index = device.index or 0
    if index >= torch.cuda.device_count():
        raise SetupRefused(
            f"device: there is no {settings.device}; torch sees {torch.cuda.device_count()} CUDA devices"
        )
    return torch.device("cuda", index)


def chosen_grade(settings: Settings, device: torch.device) -> Grade:
    """Return the configured grade; by default strict on the CPU and warn on CUDA."""
    return settings.determinism or ("strict" if device.type == "cpu" else "warn")


def chosen_threads(settings: Settings, device: torch.device, ranks: int = 1) -> int:
    """Return the configured number of torch threads, else that of OMP_NUM_THREADS, which torch itself obeys.

    Without either it is all cores for a CPU run, all but one for a GPU run. Ranks share them. With exact sums it does
    not depend on the number of ranks: there may be as many as leaves. torchrun sets OMP_NUM_THREADS for several only.
    """
    if settings.torch_threads:
        return settings.torch_threads
    cores, wanted = len(os.sched_getaffinity(0)), os.environ.get("OMP_NUM_THREADS", "")
    if settings.parallel.exact:
        ranks = settings.parallel.leaves or 1
    elif wanted.isdecimal() and 0 < int(wanted) <= cores:
        return int(wanted)
    return max(1, (cores if device.type == "cpu" else cores - 1) // ranks)


def prepare(grade: Grade, threads: int, device: torch.device) -> None:
    """Set torch's switches and its number of threads. The number of threads changes the bits of sums."""
    torch.set_num_threads(threads)
    # use_deterministic_algorithms does the same, but imports the compiler, which takes two seconds.
    torch.set_deterministic_debug_mode({"strict": "error", "warn": "warn", "off": "default"}[grade])
    torch.backends.cudnn.benchmark = grade == "off"
    torch.backends.cudnn.deterministic = grade != "off"
    if device.type == "cuda":
        # cuBLAS reads this when its first handle is created, which is later.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.cuda.set_device(device)


@contextmanager
def lent() -> Iterator[None]:
    """Restore torch's switches and thread count at the end of the block: a user's program continues after training."""
    threads = torch.get_num_threads()
    debug_mode = torch.get_deterministic_debug_mode()
    benchmark, deterministic = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic
    current = torch.cuda.current_device() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        if current is not None:
            torch.cuda.set_device(current)
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(debug_mode)
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = benchmark, deterministic


def environment(
    model: nn.Module,
    *,
    device: torch.device,
    grade: Grade,
    precision: str,
    task_hash: str,
    config_hash: str,
    data: tuple[m.DataPrint, ...],
    optimizers: str = "",
) -> m.Environment:
    """Return the execution context of this process."""
    on_gpu = device.type == "cuda"
    return m.Environment(
        python=platform.python_version(),
        torch=str(torch.__version__),  # a subclass of str that encoders refuse
        numpy=str(np.__version__),
        tolariad=tolariad.__version__,
        cpu=f"{_cpu_name()} ({torch.backends.cpu.get_cpu_capability()})",
        threads=torch.get_num_threads(),
        device=str(device),
        determinism=grade,
        precision=precision,
        model_hash=model_hash(model),
        task_hash=task_hash,
        config_hash=config_hash,
        cuda=(torch.version.cuda or "") if on_gpu else "",
        gpu=torch.cuda.get_device_name(device) if on_gpu else "",
        data=data,
        optimizers=optimizers,
    )


def model_hash(model: nn.Module) -> str:
    """Return the BLAKE3 of names, shapes and dtypes of all parameters and buffers: the architecture, not the values."""
    hasher = blake3()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        hasher.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
    return hasher.hexdigest()


def _cpu_name() -> str:
    """Return the processor's name as Linux reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
