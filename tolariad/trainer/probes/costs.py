"""Estimate what a run costs: build all of it, run a few real batches, and keep nothing."""

from __future__ import annotations

import resource
import statistics
import time
from typing import Final

import msgspec
import torch

from tolariad.trainer.checkpoints.capture import capture
from tolariad.trainer.checkpoints.snapshot import Position
from tolariad.trainer.data.samples import samples_of
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.probes.copying import built_copy
from tolariad.trainer.probes.messages import EstimateCosts
from tolariad.trainer.probes.prunable import Prunable, prunable
from tolariad.trainer.probes.steps import one_epoch, one_step
from tolariad.trainer.setup import Setup
from tolariad.trainer.step.validate import try_evaluate

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


class SlotInput(msgspec.Struct, frozen=True):
    """A slot for seeds, and the shape of its input; None if the model never called the module at this place."""

    name: str
    shape: tuple[int, ...] | None


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """The estimate. Memory is that of parameters, buffers, gradients and optimizer, without activations.

    * `trainable`: the number of parameters that are not frozen.
    * `groups`: the parameter groups with their rates, in the order of the optimizers.
    * `batch_samples`: the number of samples in the first batch.
    * `checkpoint_memory_bytes`: the host memory for the copy of the state while a checkpoint is written.
    * `evaluate_ms`: the time of one batch of the validation data; None if there is none.
    * `metrics`: what the validation of that batch gave.
    * `slots`: the slots for seeds, in the order of the model's modules.
    * `pruning`: the parts that can be pruned; None without `prune.enabled`.
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
    slots: tuple[SlotInput, ...] = ()
    pruning: Prunable | None = None


def estimate(trial: EstimateCosts) -> Costs:
    """Return the costs of the run that the trial describes. Raises SetupRefused, or what the task raises."""
    return costs(built_copy(trial).setup)


def costs(setup: Setup) -> Costs:
    """Take a few real steps on `setup`, which must not be used afterwards.

    First check its data, as a first start does.
    """
    setup.train.check(setup.settings.data.ignore)
    found = tuple(finding.words for finding in setup.train.findings)
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
        notes=(*setup.notes, *found),
        evaluate_ms=None if setup.validation is None else evaluate_s * 1e3,
        metrics=metrics,
        slots=tuple(
            SlotInput(name, None if (seen := plot.slot.last_input) is None else tuple(seen[0]))
            for name, plot in setup.garden.plots.items()
        ),
        pruning=prunable(setup),
    )


def _steps(setup: Setup) -> tuple[float, list[float], int]:
    """Return the first loss, the seconds of a few steps, and the number of samples in the first batch."""
    losses: list[float] = []
    times: list[float] = []
    samples = 0
    give_up = time.perf_counter() + _SECONDS_MAX
    for step, group in enumerate(one_epoch(setup, 1), 1):
        samples = samples or samples_of(group[0])
        begun = time.perf_counter()
        losses.append(one_step(setup, group, step).loss)
        setup.rates.advance(1)
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


def _peak_bytes(device: torch.device) -> int:
    """Return the peak memory so far: of the device, or of this process if it computes on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
