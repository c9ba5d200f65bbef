"""Profile steps of a copy: where the time of a step goes, and the trace of torch's profiler.

The steps are those of the training loop: the same stepper, detector, rate controller and boundary. Nobody records them,
so no step waits for a journal. Hooks of the task are not called.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.profiler import ProfilerActivity, profile

from tolariad.channel import TrainerEnd, channel_pair
from tolariad.trainer.data.feed import to_device
from tolariad.trainer.health.stopwatch import Stopwatch
from tolariad.trainer.lr.audit import Audit
from tolariad.trainer.orders import Boundary, Link
from tolariad.trainer.orders.gate import Gate
from tolariad.trainer.probes.copying import built_copy
from tolariad.trainer.probes.counter import Counter
from tolariad.trainer.probes.messages import Operation, PartOfStep, Profile
from tolariad.trainer.probes.parts import (
    DATA,
    FORWARD,
    OURS,
    RANGES,
    Parts,
    WithParts,
    backward_passes,
    updates,
)
from tolariad.trainer.probes.steps import endless
from tolariad.trainer.step.several import StepperOfUpdates
from tolariad.trainer.step.stepper import Stepper

if TYPE_CHECKING:
    from tolariad.core import messages as m
    from tolariad.trainer.probes.messages import ProfileSteps
    from tolariad.trainer.setup import Setup

# Above every number that a report can have: each is durable at once.
_ALL_DURABLE: Final = 1 << 62
# The first steps under the profiler include its own start.
_PROFILER_WARMUP: Final = 2


class NotWritten(Exception):
    """The trace cannot be written. The text names the file and the reason."""


class _OpenGate(Gate):
    """A gate that no kernel serves."""

    def ask(self, report: m.InstabilityReport) -> None:
        """Go on: there is no daemon that could answer."""


def _in_parts(setup: Setup, parts: Parts) -> Setup:
    """Return the setup with the work of the task and of the moving average as parts."""
    task, step, clip = setup.task, setup.training_step, setup.clip
    loss = getattr(task, "loss", None)

    in_parts: dict[str, Any] = {}
    if callable(loss):
        in_parts["task"] = WithParts(task, loss=parts.around(FORWARD, loss))
    if step is not None:
        # What an update is beside its backward pass and the optimizer's step is tolariad's.
        in_parts["training_step"] = parts.around(
            FORWARD,
            lambda model, batch, run: step(model, batch, WithParts(run, update=parts.around(OURS, run.update))),
        )
    if clip is not None:
        in_parts["clip"] = parts.around("clipping", clip)
    in_parts["parts"] = [
        one if one.after_update is None else WithParts(one, after_update=parts.around(one.name, one.after_update))
        for one in setup.parts
    ]
    return replace(setup, **in_parts)


class _Loop:
    """The training loop without a daemon, epochs and hooks. `parts`: the clock of its steps."""

    def __init__(self, setup: Setup, steps: int) -> None:
        """`steps`: the number of steps that the loop will make; the progress line shows it."""
        self._counter, self._made = Counter("step", steps), 0
        parts = self.parts = Parts(setup.device)
        self._setup = setup = _in_parts(setup, parts)
        # Held for as long as the loop: without the other end the channel would be closed.
        self._daemon, ours = channel_pair(1)
        self._daemon.page.set_durable(_ALL_DURABLE)
        self._daemon.page.thaw()
        link = Link.over(end := TrainerEnd(ours, self._daemon.page))
        link = link._replace(gate=_OpenGate(end, link.reporter, link.inbox))
        audit = Audit(setup, lambda *_: None)
        kind = Stepper if setup.training_step is None else StepperOfUpdates
        self._stepper = kind(setup, link, Stopwatch(setup.settings, setup.device), audit, hook=lambda *_, **__: None)
        self._boundary = Boundary(link, before_obeying=self._stepper.settle)
        self._batches = endless(setup)
        self._fetched = parts.around(DATA, self._next)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """In the block the parts of each step are known."""
        with backward_passes(self.parts), updates(self.parts, [owner.optimizer for owner in self._setup.owners]):
            yield

    def run(self, steps: int) -> None:
        """Make steps, as the training loop does."""
        for _ in range(steps):
            self.parts.begin()
            self._stepper.make(self._fetched())
            self._boundary.stop()
            self.parts.end()
            self._made += 1
            self._counter.show(self._made)
        self._counter.end()

    def timed(self, steps: int) -> tuple[PartOfStep, ...]:
        """Make steps, and return the mean time of their parts."""
        self.parts.restart()
        self.run(steps)
        return tuple(PartOfStep(name, 1e3 * spent / steps) for name, spent in self.parts.seconds.items() if spent)

    def _next(self) -> tuple[Any, ...]:
        # Copies to the device are part of the data; later they find everything there.
        return tuple(to_device(batch, self._setup.device) for batch in next(self._batches))


def profiled(trial: ProfileSteps) -> Profile:
    """Return the profile, and write the trace. Raises what `built_copy` and the task raise, and NotWritten."""
    output = Path(trial.output)
    setup = built_copy(trial).setup
    on_device = setup.device.type == "cuda"
    loop = _Loop(setup, trial.warmup + 2 * trial.steps + _PROFILER_WARMUP)
    with loop.watched():
        loop.run(trial.warmup)
        parts = loop.timed(trial.steps)
        loop.parts.mark()
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_device else [])]
        with profile(activities=activities):
            loop.run(_PROFILER_WARMUP)
        with profile(activities=activities) as found:
            begun = time.perf_counter()
            loop.run(trial.steps)
            profiled_s = time.perf_counter() - begun
    return Profile(
        device=str(setup.device),
        threads=torch.get_num_threads(),
        steps=trial.steps,
        step_ms=sum(part.ms for part in parts),
        profiled_ms=1e3 * profiled_s / trial.steps,
        parts=parts,
        operations=_operations(found, trial.steps, on_device=on_device),
        trace=trial.output,
        trace_bytes=_written(found, output),
    )


def _operations(found: profile, steps: int, *, on_device: bool) -> tuple[Operation, ...]:
    """Return what the profiler saw, the dearest first. Ranges are left out: their work is that of the operations."""
    every = [
        Operation(
            event.key,
            event.count / steps,
            event.self_cpu_time_total / 1e3 / steps,
            event.self_device_time_total / 1e3 / steps,
        )
        for event in found.key_averages()
        if not event.is_user_annotation and event.key not in RANGES
    ]
    return tuple(sorted(every, key=lambda one: (-one.device_ms if on_device else 0.0, -one.cpu_ms, one.name)))


def _written(found: profile, output: Path) -> int:
    """Write the trace under another name, and rename it. Return its size."""
    aside = output.with_name(f".{output.name}.partial{output.suffix}")
    try:
        found.export_chrome_trace(str(aside))
        size = aside.stat().st_size
        aside.replace(output)
    except OSError as error:
        raise NotWritten(f"{output}: {error.strerror or error}") from error
    finally:
        aside.unlink(missing_ok=True)
    return size
