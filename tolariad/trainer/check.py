"""Estimate what a run costs: build all of it, run a few real batches, and keep nothing.

Promises: prints one JSON object on stdout, also if the run is refused.
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
from typing import Any, Final

import msgspec
import torch

from tolariad.core.exits import EXIT_CONFIG
from tolariad.core.settings.reading import ConfigError
from tolariad.core.settings.rules import read_resolved, resolved_json
from tolariad.trainer.build import build
from tolariad.trainer.checkpoints.capture import capture
from tolariad.trainer.checkpoints.snapshot import Position
from tolariad.trainer.errors import SetupRefused, TaskRaised
from tolariad.trainer.process import light_start
from tolariad.trainer.setup import Setup
from tolariad.trainer.step.gradients import drop_gradients, forward_backward, update
from tolariad.trainer.step.several import compute_updates
from tolariad.trainer.step.updates import Updates
from tolariad.trainer.step.validate import samples_of, try_evaluate

_STEPS_MAX: Final = 6
_SECONDS_MAX: Final = 3.0
# Bytes of a step in the journal, if every step is written as a separate frame.
_FRAME_BYTES: Final = 4096
_DAY_S: Final = 86_400


class GroupRate(msgspec.Struct, frozen=True):
    """The learning rates of a group: its policy, its base rate, the steps of its warm-up."""

    name: str
    policy: str
    base_lr: float
    warmup_steps: int


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """The estimate. Memory is that of parameters, buffers, gradients and optimizer, without activations.

    `trainable`: how many parameters are not frozen. `groups`: in the order of the optimizers. `batch_samples`: in the
    first batch. `checkpoint_memory_bytes` is the host memory for the copy of the state while a checkpoint is written.
    `evaluate_ms` and `metrics`: the time of one batch of the validation data, and what it gave; empty without any.
    """

    parameters: int
    trainable: int
    groups: tuple[GroupRate, ...]
    state_bytes: int
    checkpoint_bytes: int
    checkpoint_memory_bytes: int
    peak_memory_bytes: int
    batch_samples: int
    steps_per_epoch: int | None
    step_ms: float
    journal_gb_day: float
    device: str
    threads: int
    determinism: str
    loss: float
    notes: tuple[str, ...]
    evaluate_ms: float | None = None
    metrics: dict[str, float] = {}


class Refused(msgspec.Struct, frozen=True):
    """Why there is no estimate."""

    error: str
    traceback: str = ""


def check(config_json: Path) -> int:
    """Print the costs of the run that `config_json` describes. Return 0, or 78 if it cannot be trained."""
    light_start.install()
    try:
        # Send the task's output to stderr: stdout holds the estimate only.
        with contextlib.redirect_stdout(sys.stderr):
            answer: Costs | Refused = costs(build(_seeded(config_json.read_bytes())))
    except TaskRaised as refused:
        answer = Refused(str(refused), "".join(traceback.format_exception(refused.__cause__)))
    except (SetupRefused, ConfigError, OSError) as refused:
        answer = Refused(str(refused))
    except Exception as error:  # noqa: BLE001 - a task may raise anything; the exception is the answer
        answer = Refused(f"the task raises {type(error).__name__}: {error}", traceback.format_exc())
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    return EXIT_CONFIG if isinstance(answer, Refused) else 0


def _seeded(config: bytes) -> bytes:
    """Return the configuration with a seed. The seed of a run is drawn only when the run begins."""
    settings = read_resolved(config)
    return resolved_json(msgspec.structs.replace(settings, rng_seed=settings.rng_seed or 0))


def costs(setup: Setup) -> Costs:
    """Take a few real steps on `setup`, which must not be used afterwards."""
    first, times, samples = _steps(setup)
    begun = time.perf_counter()
    metrics = try_evaluate(setup).means
    evaluate_s = time.perf_counter() - begun
    captured = capture(setup, Position(step=0, epoch=1, batch=0))
    size = sum(len(chunk) for file in captured.files() for chunk in file.chunks)
    gradients = sum(p.numel() * p.element_size() for p in setup.model.parameters() if p.requires_grad)
    # Leave out the first step if there are others: it includes one-time allocations.
    step_s = statistics.median(times[1:] or times)
    return Costs(
        parameters=setup.parameters,
        trainable=sum(p.numel() for p in setup.model.parameters() if p.requires_grad),
        groups=tuple(
            GroupRate(one.name, one.policy_name, one.schedule.base_lr, one.schedule.warmup_steps)
            for one in setup.rates.groups
        ),
        state_bytes=size + gradients,
        checkpoint_bytes=size,
        checkpoint_memory_bytes=captured.room,
        peak_memory_bytes=_peak_bytes(setup.device),
        batch_samples=samples,
        steps_per_epoch=setup.steps_per_epoch or None,
        step_ms=step_s * 1e3,
        journal_gb_day=_DAY_S / step_s * _FRAME_BYTES / 1e9,
        device=str(setup.device),
        threads=setup.environment.threads,
        determinism=setup.environment.determinism,
        loss=first,
        notes=setup.notes,
        evaluate_ms=None if setup.validation is None else evaluate_s * 1e3,
        metrics=metrics,
    )


def _steps(setup: Setup) -> tuple[float, list[float], int]:
    """Return the first loss, the seconds of a few steps, and the number of samples in the first batch."""
    losses: list[float] = []
    times: list[float] = []
    samples = 0
    give_up = time.perf_counter() + _SECONDS_MAX
    batches = setup.train.epoch(1, 0)
    while group := tuple(islice(batches, setup.settings.accumulate)):
        samples = samples or samples_of(group[0])
        begun = time.perf_counter()
        losses.append(_step(setup, group, len(losses) + 1))
        setup.rates.advance(1)
        drop_gradients(setup.owners)
        if setup.device.type == "cuda":
            torch.cuda.synchronize(setup.device)
        times.append(time.perf_counter() - begun)
        # With a compiled model, the first step measures the compiler and not a step.
        enough = len(times) > setup.settings.compile and time.perf_counter() > give_up
        if len(times) == _STEPS_MAX or enough:
            break
    if not losses:
        raise SetupRefused("the task's training data yields no batch")
    return losses[0], times, samples


def _step(setup: Setup, group: tuple[Any, ...], step: int) -> float:
    """Make one step. Return its loss."""
    if setup.training_step is not None:
        updates = Updates(setup)
        updates.begin(step)
        return compute_updates(setup, group[0], updates).read().loss
    measured = forward_backward(setup, group, step).read()
    update(setup, skip=measured.overflow)
    return measured.loss


def _peak_bytes(device: torch.device) -> int:
    """Return the peak memory so far: of the device, or of this process if it computes on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
