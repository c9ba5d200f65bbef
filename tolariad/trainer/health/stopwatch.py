"""What training takes, against the budgets of the trainer: epoch boundaries, rates, and what all of tolariad costs a run.

The first 50 steps that a trainer makes are its calibration: of each, only what the task itself does is timed (its data, its
forward and backward pass, the update, its hooks). Their median is what a step would take by itself; an epoch's loss of
throughput is how much longer its steps took, waits, reports and copies of checkpoints among them. Memory is held against
what the process had then without what tolariad keeps for itself. Both are shown and lead to nothing.

Promises: while the run stands on purpose (a pause, a freeze) no clock runs; what a checkpoint takes is no part of a
boundary; behind the calibration a step costs a few calls more. It must not know: reports, orders, what an overrun leads to.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from statistics import median
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
# Of them; memory is had, code is compiled and caches are filled in these.
_FIRST_STEPS: Final = 3
# One step in so many is looked at where looking costs as much as what is looked at.
_SAMPLED: Final = 64
_PAGE: Final = 4096


def held_bytes(device: torch.device) -> int:
    """What this process has: resident in host memory, and allocated on its device."""
    with open("/proc/self/statm", "rb") as statm:  # noqa: PTH123 - once an epoch, and as a Path it reads no better
        resident = int(statm.read().split()[1]) * _PAGE
    return resident + (torch.cuda.memory_allocated(device) if device.type == "cuda" else 0)


class Stopwatch:
    """One trainer's measurements, from its start to its end."""

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
        """`ours`: bytes that are held for tolariad's own sake, such as those that checkpoints are copied into.

        `shares`: what the parts of the run hold, in percent, by the names of their budgets; asked at each epoch's end.
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
        # While it does, what the task does is to be called by `of_task`.
        self.calibrates = True
        # Of the epoch: since when, how many steps, and what is not its own.
        self._since: float | None = None
        self._steps = 0
        self._standing = 0.0
        self._boundary: float | None = None
        self._elsewhere = 0.0
        self._nested = False

    # -- in every step -------------------------------------------------------------------------------------------------

    def fed(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The same batches; getting them is the task's time."""
        nothing = object()
        while self.calibrates:
            batch = self.of_task(next, batches, nothing)
            if batch is nothing:
                return
            yield batch
        yield from batches

    def of_task(self, function: Callable[_Given, _Found], *args: _Given.args, **kwargs: _Given.kwargs) -> _Found:
        """Call what the task would do without tolariad too; timed during the calibration."""
        if not self.calibrates:
            return function(*args, **kwargs)
        begun = self._clock()
        found = function(*args, **kwargs)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._own += self._clock() - begun
        return found

    def advance(self, rates: UnifiedLRController, epoch: int) -> None:
        """On to the rates of the next step; now and then that, and a look at them as the guard takes it, are timed."""
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
        """A step was made and is recorded as such."""
        self._steps += 1
        if self._baseline is None:
            self._bare.append(self._own)
            self._own = 0.0
            if len(self._bare) == _FIRST_STEPS + CALIBRATION_STEPS:
                self._baseline = median(self._bare[_FIRST_STEPS:]), max(1, self._held(self._device) - self._ours())
                self.calibrates = False
                self.begin()

    def begin(self) -> None:
        """Steps are counted from here on: an epoch begins, or what came before was no ordinary training."""
        self._since, self._steps, self._standing, self._own = self._clock(), 0, 0.0, 0.0
        self._boundary = None

    # -- around an epoch's end -----------------------------------------------------------------------------------------

    def trained(self) -> None:
        """The last step of an epoch is reported: its boundary begins."""
        now = self._clock()
        if self._baseline is not None and self._since is not None and self._steps:
            alone_s, alone_bytes = self._baseline
            took_s = (now - self._since - self._standing) / self._steps
            self._add_value("training_degradation", max(0.0, 100.0 * (1.0 - alone_s / took_s)) if took_s > 0 else 0.0)
            grown = 100.0 * (self._held(self._device) - alone_bytes) / alone_bytes
            self._add_value("memory_overhead", max(0.0, grown))
        self._since = None
        self._boundary, self._elsewhere = now, 0.0
        with self.apart():
            for name, percent in self._shares().items():
                self._add_value(name, percent)

    def went_on(self) -> None:
        """Behind the boundary: the next epoch may begin."""
        if self._boundary is not None:
            self._add(BOUNDARY, max(0.0, self._clock() - self._boundary - self._elsewhere))
        self._boundary = None

    @contextmanager
    def apart(self) -> Iterator[None]:
        """What goes on inside is no part of a boundary. Of two, one in the other, the outer one counts."""
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
        """The run stands on purpose: that is no part of training either."""
        begun = self._clock()
        try:
            with self.apart():
                yield
        finally:
            self._standing += self._clock() - begun

    # -- what was measured ---------------------------------------------------------------------------------------------

    def taken(self) -> tuple[Tally, ...]:
        """Everything since this was asked last."""
        meters, self._meters = self._meters, {}
        return tallies(meters)

    def _add(self, name: str, seconds: float) -> None:
        self._add_value(name, in_unit(BUDGETS[name], seconds))

    def _add_value(self, name: str, value: float) -> None:
        self._meters[name] = with_one(self._meters.get(name, Meter()), value, self._limits.limit_of(name))
