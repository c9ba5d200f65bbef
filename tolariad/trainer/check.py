"""What a run would be and cost, found by building all of it and running real batches; nothing is kept.

Promises: one JSON object on stdout, also when the answer is no. It must not know: how the figures are shown.
"""

from __future__ import annotations

import contextlib
import resource
import statistics
import sys
import time
import traceback
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec
import torch

from tolariad.core.settings.reading import ConfigError
from tolariad.core.settings.rules import read_resolved, resolved_json
from tolariad.trainer.build import build
from tolariad.trainer.checkpoints.capture import capture
from tolariad.trainer.checkpoints.snapshot import Position
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.process import light_start
from tolariad.trainer.setup import Setup
from tolariad.trainer.step.gradients import forward_backward, update

EXIT_REFUSED: Final = 78
_STEPS_MAX: Final = 6
_SECONDS_MAX: Final = 3.0
# What one step takes in the journal where every step is a frame of its own.
_FRAME_BYTES: Final = 4096
_DAY_S: Final = 86_400


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. Memory is that of parameters, buffers, gradients and optimizer; activations come on top.

    `checkpoint_memory_bytes` is host memory that one copy of the state takes while it is written.
    """

    parameters: int
    state_bytes: int
    checkpoint_bytes: int
    checkpoint_memory_bytes: int
    peak_memory_bytes: int
    steps_per_epoch: int | None
    step_ms: float
    journal_gb_day: float
    device: str
    threads: int
    determinism: str
    loss: float
    notes: tuple[str, ...]


class Refused(msgspec.Struct, frozen=True):
    """Why there is no answer."""

    error: str
    traceback: str = ""


def check(config_json: Path) -> int:
    """Print the costs of the run that `config_json` describes; 0, or 78 where it cannot be trained."""
    light_start.install()
    try:
        # Whatever the task prints goes to stderr: stdout holds the answer and nothing else.
        with contextlib.redirect_stdout(sys.stderr):
            answer: Costs | Refused = costs(build(_seeded(config_json.read_bytes())))
    except (SetupRefused, ConfigError, OSError) as refused:
        answer = Refused(str(refused))
    except Exception as error:  # noqa: BLE001 - a task may raise anything, and the answer is that it does
        answer = Refused(f"the task raises {type(error).__name__}: {error}", traceback.format_exc())
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    return EXIT_REFUSED if isinstance(answer, Refused) else 0


def _seeded(config: bytes) -> bytes:
    """The configuration with a seed; a run's own is drawn when it begins."""
    settings = read_resolved(config)
    return resolved_json(msgspec.structs.replace(settings, rng_seed=settings.rng_seed or 0))


def costs(setup: Setup) -> Costs:
    """Take a few real steps on `setup`, which is of no use afterwards."""
    first, times = _steps(setup)
    captured = capture(setup, Position(step=0, epoch=1, batch=0))
    size = sum(len(chunk) for file in captured.files() for chunk in file.chunks)
    gradients = sum(p.numel() * p.element_size() for p in setup.model.parameters() if p.requires_grad)
    # The first step pays for lazily made things; where there were more, it is left out.
    step_s = statistics.median(times[1:] or times)
    return Costs(
        parameters=setup.parameters,
        state_bytes=size + gradients,
        checkpoint_bytes=size,
        checkpoint_memory_bytes=captured.room,
        peak_memory_bytes=_peak_bytes(setup.device),
        steps_per_epoch=setup.steps_per_epoch or None,
        step_ms=step_s * 1e3,
        journal_gb_day=_DAY_S / step_s * _FRAME_BYTES / 1e9,
        device=str(setup.device),
        threads=setup.environment.threads,
        determinism=setup.environment.determinism,
        loss=first,
        notes=setup.notes,
    )


def _steps(setup: Setup) -> tuple[float, list[float]]:
    """The first loss, and the seconds of a few steps."""
    losses: list[float] = []
    times: list[float] = []
    give_up = time.perf_counter() + _SECONDS_MAX
    batches = setup.train.epoch(1, 0)
    while group := tuple(islice(batches, setup.settings.accumulate)):
        begun = time.perf_counter()
        measured = forward_backward(setup, group, len(losses) + 1).read()
        losses.append(measured.loss)
        update(setup, skip=measured.overflow)
        setup.rates.advance(1)
        setup.optimizer.zero_grad(set_to_none=True)
        _synchronise(setup.device)
        times.append(time.perf_counter() - begun)
        # The first step of a compiled model shows what compiling costs, not what a step does.
        enough = len(times) > setup.settings.compile and time.perf_counter() > give_up
        if len(times) == _STEPS_MAX or enough:
            break
    if not losses:
        raise SetupRefused("the task's training data gave no batch")
    return losses[0], times


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _peak_bytes(device: torch.device) -> int:
    """The most memory taken so far: of the device, or of this process where it computes on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
