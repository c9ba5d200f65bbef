"""Measure the trainer's times against their budgets: epoch boundaries, rate steps, and the cost of recording.

The first 50 steps of a trainer are the calibration. In these, only the task's own work is timed: data, forward and
backward pass, update, hooks. The mean is the time of a step without recording.

`training_degradation` compares that with the mean time of later steps, waits and reports included, in percent of the
latter. Steps while a checkpoint is copied or written do not count: checkpoints have budgets of their own, and the
configuration chooses how often one is taken. One measurement has at least 50 steps, from as many epochs as that needs.
`memory_overhead` compares the process's memory with that after the calibration, without tolariad's own buffers. Both
are shown; nothing follows from them.

Promises: clocks stop while the run is paused or frozen. The time of a checkpoint does not count as part of a boundary.
After the calibration the measurement costs a few calls for each step.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

import torch

from tolariad.core.health.budget_slice import BOUNDARY, Overruns, in_unit, limits_of
from tolariad.core.health.budget_words import Tally, tallies
from tolariad.core.health.budgets import BUDGETS
from tolariad.core.health.histogram import Meter, with_one

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tolariad.core.settings.model import Settings
    from tolariad.trainer.lr import UnifiedLRController

_Given = ParamSpec("_Given")
_Found = TypeVar("_Found")

CALIBRATION_STEPS: Final = 50
# The first steps of the calibration are left out: in these memory is allocated, code compiled, and caches filled.
_FIRST_STEPS: Final = 3
# If measuring costs as much as the work itself, only one step in this many is measured.
_SAMPLED: Final = 64
_PAGE: Final = 4096


def held_bytes(device: torch.device) -> int:
    """Return the bytes of this process: resident in host memory, and allocated on its device."""
    with open("/proc/self/statm", "rb") as statm:  # noqa: PTH123 - a Path would not be clearer
        resident = int(statm.read().split()[1]) * _PAGE
    return resident + (torch.cuda.memory_allocated(device) if device.type == "cuda" else 0)


class Stopwatch:
    """The measurements of one trainer, from its start to its end."""

    def __init__(
        self,
        settings: Settings,
        device: torch.device,
        ours: Callable[[], int] = lambda: 0,
        *,
        shares: Callable[[], Mapping[str, float]] = dict,
        clock: Callable[[], float] = time.perf_counter,
        held: Callable[[torch.device], int] = held_bytes,
    ) -> None:
        """`ours` returns the bytes of tolariad's own buffers, such as those for checkpoints.

        `shares` returns the memory of the run's parts in percent, by the names of their budgets. It is called at the
        end of each epoch.
        """
        self._limits = Overruns(limits=limits_of(settings))
        self._device = device
        self._clock = clock
        self._held = held
        self._ours = ours
        self._shares = shares
        self._meters: dict[str, Meter] = {}
        self._bare: list[float] = []
        self._own = 0.0
        self._baseline: tuple[float, int] | None = None
        # While this is True, the task's work must be called through `of_task`.
        self.calibrates = True
        # The current row of steps that count: its start, its steps, and how long the run was paused or frozen.
        self._since: float | None = None
        self._steps = 0
        self._standing = 0.0
        self._is_checkpointing = False
        # Of all steps that count and are in no measurement yet.
        self._counted_steps = 0
        self._counted_s = 0.0
        self._boundary: float | None = None
        self._elsewhere = 0.0
        self._nested = False

    # -- in every step -------------------------------------------------------------------------------------------------

    def fed(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the same batches. Fetching them counts as the task's time."""
        nothing = object()
        while self.calibrates:
            batch = self.of_task(next, batches, nothing)
            if batch is nothing:
                return
            yield batch
        yield from batches

    def of_task(self, function: Callable[_Given, _Found], *args: _Given.args, **kwargs: _Given.kwargs) -> _Found:
        """Call a part of the task's own work, and time it during the calibration."""
        if not self.calibrates:
            return function(*args, **kwargs)
        begun = self._clock()
        found = function(*args, **kwargs)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._own += self._clock() - begun
        return found

    def advance(self, rates: UnifiedLRController, epoch: int) -> None:
        """Advance to the rates of the next step. In some steps, time this and a check by the guard."""
        if rates.global_step % _SAMPLED:
            rates.advance(epoch)
            return
        begun = self._clock()
        rates.advance(epoch)
        advanced = self._clock()
        rates.is_clean()
        self._add("lr_step", advanced - begun)
        self._add("lr_integrity", self._clock() - advanced)

    def stepped(self) -> None:
        """Count a step that was made and reported."""
        self._steps += 1
        if self._baseline is None:
            self._bare.append(self._own)
            self._own = 0.0
            if len(self._bare) == _FIRST_STEPS + CALIBRATION_STEPS:
                self._baseline = fmean(self._bare[_FIRST_STEPS:]), max(1, self._held(self._device) - self._ours())
                self.calibrates = False
                self.begin()

    def begin(self) -> None:
        """Count steps from here on: an epoch begins, or something other than ordinary training ended."""
        self._own = 0.0
        self._boundary = None
        self._count()

    def checkpoint_begun(self) -> None:
        """A checkpoint is ordered or being written: steps from here on do not count."""
        if not self._is_checkpointing:
            self._is_checkpointing = True
            self._stop_counting()

    def checkpoint_done(self) -> None:
        """No checkpoint is being written any more: steps count again."""
        if self._is_checkpointing:
            self._is_checkpointing = False
            self._count()

    def _count(self) -> None:
        self._since = None if self._is_checkpointing else self._clock()
        self._steps, self._standing = 0, 0.0

    def _stop_counting(self) -> None:
        if self._since is not None and self._baseline is not None:
            self._counted_steps += self._steps
            self._counted_s += self._clock() - self._since - self._standing
        self._since = None

    # -- around an epoch's end -----------------------------------------------------------------------------------------

    def trained(self) -> None:
        """Start timing the boundary: the last step of an epoch is reported."""
        now = self._clock()
        self._stop_counting()
        if self._baseline is not None:
            alone_s, alone_bytes = self._baseline
            if self._counted_steps >= CALIBRATION_STEPS:
                took_s = self._counted_s / self._counted_steps
                self._add_value("training_degradation", 100.0 * (1.0 - alone_s / took_s) if took_s > alone_s else 0.0)
                self._counted_steps, self._counted_s = 0, 0.0
            grown = 100.0 * (self._held(self._device) - alone_bytes) / alone_bytes
            self._add_value("memory_overhead", max(0.0, grown))
        self._boundary, self._elsewhere = now, 0.0
        with self.apart():
            for name, percent in self._shares().items():
                self._add_value(name, percent)

    def went_on(self) -> None:
        """End timing the boundary: the next epoch may begin."""
        if self._boundary is not None:
            self._add(BOUNDARY, max(0.0, self._clock() - self._boundary - self._elsewhere))
        self._boundary = None

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Leave the block's time out of the boundary. If blocks are nested, the outer one counts."""
        if self._nested:
            yield
            return
        self._nested, begun = True, self._clock()
        try:
            yield
        finally:
            self._nested = False
            self._elsewhere += self._clock() - begun

    @contextmanager
    def standing(self) -> Iterator[None]:
        """Leave the block's time out of training too: the run is paused or frozen."""
        begun = self._clock()
        try:
            with self.apart():
                yield
        finally:
            self._standing += self._clock() - begun

    # -- what was measured ---------------------------------------------------------------------------------------------

    def taken(self) -> tuple[Tally, ...]:
        """Return all measurements since the last call."""
        meters, self._meters = self._meters, {}
        return tallies(meters)

    def _add(self, name: str, seconds: float) -> None:
        self._add_value(name, in_unit(BUDGETS[name], seconds))

    def _add_value(self, name: str, value: float) -> None:
        self._meters[name] = with_one(self._meters.get(name, Meter()), value, self._limits.limit_of(name))
