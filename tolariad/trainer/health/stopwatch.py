"""Measure the trainer's times against their budgets: epoch boundaries, rate steps, and the cost of recording.

`training_degradation` is the share of a step that is not the task's own work. Own work is what the same training
without tolariad would do: data, forward and backward pass with loss and gradient norm, update, moving average, hooks.
The rest is reports, waits at the gate, orders at boundaries, snapshots among them. Both are timed within the same
steps, so the load of the machine changes both alike. Every step is timed until the first measurement, later about one
in eight. Steps while a checkpoint is copied or written do not count. Checkpoints have budgets of their own, and the
configuration chooses how often one is taken. One measurement has at least 50 timed steps, from as many epochs as that
needs.

On a GPU nothing waits for the device to be timed. The times are those of this thread: the wait for a step's numbers is
the task's own time, as the device computes then. Whatever recording does while the device has work costs nothing, and
is counted all the same. So the share is an upper bound there.

The time of an epoch boundary is without the wait for a processor, as the system's scheduler counts it. On a loaded
machine that wait is most of the time, and no fault of the run. It is that of this thread and of the two threads of the
daemon that a boundary waits for. Adaptation and rates are one thread's work: the processor time of this thread counts.
Both are reported by the clock too.

`memory_overhead` is the staging memory of checkpoints and snapshots, and the growth of the process besides. It is a
share of what the process held after its first 53 steps, without staging memory. Nothing follows from these two.

Promises: clocks stop while the run is paused or frozen. The time of a checkpoint does not count as part of a boundary.
A step that is not timed costs a few calls more than one without measurement.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, ParamSpec, TypeVar

import torch

from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.health.budgets import BUDGETS
from tolariad.core.calc.health.histogram import Histogram, with_one

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tolariad.core.calc.settings.model import Settings
    from tolariad.trainer.lr import UnifiedLRController

_Given = ParamSpec("_Given")
_Found = TypeVar("_Found")

# Steps of one measurement.
TIMED_STEPS: Final = 50
# In the first steps memory is allocated, code compiled, and caches filled.
FIRST_STEPS: Final = 53
# The share of steps that are timed after the first measurement. The golden ratio spreads them evenly over every period:
# the length of an epoch, the steps between two digests.
_TIMED: Final = 1 / 8
_GOLDEN: Final = 0.6180339887498949
# If measuring costs as much as the work itself, only one step in this many is measured.
SAMPLED: Final = 64
# The usual duration is the median of so many timed steps.
_USUAL: Final = 33
# At most so many steps beside a checkpoint are kept until they are taken.
_BESIDE: Final = 256


def held_bytes(device: torch.device) -> int:
    """Return the bytes of this process: resident in host memory but not shared, and allocated on its device.

    Shared are the snapshots' memory, pinned memory, and batches on their way from a loader's worker.
    """
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    kib = sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssFile:")))
    return 1024 * kib + (torch.cuda.memory_allocated(device) if device.type == "cuda" else 0)


class Staged(NamedTuple):
    """The bytes of memory for copies of the state. `unshared` is the part of them that `held_bytes` contains."""

    whole: int = 0
    unshared: int = 0


class Spent(NamedTuple):
    """Seconds by the clock, in which threads waited for a processor, and in which this thread ran."""

    clock: float = 0.0
    waited: float = 0.0
    ran: float = 0.0

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.clock - other.clock, self.waited - other.waited, self.ran - other.ran)

    def __add__(self, other: tuple[Any, ...]) -> Spent:
        return Spent(*(one + more for one, more in zip(self, other, strict=True)))


class Stopwatch:
    """The measurements of one trainer, from its start to its end."""

    def __init__(
        self,
        settings: Settings,
        device: torch.device,
        ours: Callable[[], Staged] = Staged,
        *,
        shares: Callable[[], Mapping[str, float]] = dict,
        clock: Callable[[], float] = time.perf_counter,
        waited: Callable[[], float] = lambda: 0.0,
        ran: Callable[[], float] = lambda: 0.0,
        held: Callable[[torch.device], int] = held_bytes,
    ) -> None:
        """`ours` returns the staging memory.

        `shares` returns the memory of the run's parts in percent, by the names of their budgets. It is called at the
        end of each epoch. `waited` returns how long the threads of an epoch boundary have waited for a processor, in
        seconds since a fixed time. `ran` returns how long the calling thread has run.
        """
        self._limits = st.BudgetState(limits=st.limits_of(settings))
        self._device = device
        self._clock = clock
        self._waited = waited
        self._ran = ran
        self._held = held
        self._ours = ours
        self._shares = shares
        self._histograms: dict[str, Histogram] = {}
        self._made = 0
        self._bytes: int | None = None
        # Until the first measurement every step: a short run should have one.
        self._share = 1.0
        # While this is True, the task's work must be called through `of_task`.
        self.times_task = False
        # The timed step: its start, the task's own time in it, and how long the run stood on purpose.
        self._since = self._own = self._standing = 0.0
        self._lent: float | None = None
        self._is_checkpointing = False
        # Of the last timed steps, none of which is beside a checkpoint.
        self._usual: deque[float] = deque(maxlen=_USUAL)
        # Of whole steps beside a checkpoint. `_is_beside`: this one is.
        self._beside: deque[float] = deque(maxlen=_BESIDE)
        self._is_beside = False
        # Of the timed steps that are in no measurement yet.
        self._steps = 0
        self._whole_s = self._own_s = 0.0
        self._in_boundary = False
        self._before = self._elsewhere = Spent()
        self._adapted = self._adapted_ran = 0.0
        self._nested = False

    # -- in every step -------------------------------------------------------------------------------------------------

    def fed(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the same batches. Fetching them counts as the task's time."""
        nothing = object()
        while True:
            batch = self.of_task(next, batches, nothing) if self.times_task else next(batches, nothing)
            if batch is nothing:
                return
            yield batch

    def of_task(self, function: Callable[_Given, _Found], *args: _Given.args, **kwargs: _Given.kwargs) -> _Found:
        """Call a part of the task's own work, and time it if this step is timed."""
        if not self.times_task:
            return function(*args, **kwargs)
        begun = self._clock()
        found = function(*args, **kwargs)
        self._own += self._clock() - begun
        return found

    def of_ours(self, function: Callable[_Given, _Found], *args: _Given.args, **kwargs: _Given.kwargs) -> _Found:
        """Call a part of recording from within the task's own work: its time does not count as the task's."""
        if not self.times_task:
            return function(*args, **kwargs)
        begun = self._clock()
        found = function(*args, **kwargs)
        self._own -= self._clock() - begun
        return found

    def lend(self) -> None:
        """The user's own loop runs from here to `take_back`: its time counts as the task's."""
        self._lent = self._clock() if self.times_task else None

    def take_back(self) -> None:
        """The user's loop has called."""
        if self._lent is not None and self.times_task:
            self._own += self._clock() - self._lent
        self._lent = None

    def advance(self, rates: UnifiedLRController, epoch: int) -> tuple[float, ...]:
        """Advance to the rates of the next step, and return those of this one. Time it, with a check by the guard."""
        begun = self._here()
        used = rates.advance(epoch)
        advanced = self._here()
        rates.is_clean()
        for name, spent in (("lr_step", advanced - begun), ("lr_integrity", self._here() - advanced)):
            self._add_apart(name, spent.clock, max(0.0, spent.clock - spent.ran))
        return used

    def stepped(self) -> None:
        """A step was made and reported. The next one begins."""
        if self.times_task:
            took = self._clock() - self._since - self._standing
            self._steps += 1
            self._whole_s += took
            self._own_s += self._own
            self._usual.append(took)
        elif self._is_beside:
            self._beside.append(self._clock() - self._since - self._standing)
        self._made += 1
        if self._made == FIRST_STEPS:
            self._bytes = max(1, self._own_bytes(self._ours()))
        self.begin()

    def begin(self) -> None:
        """A step begins: after another one, with an epoch, or after something other than ordinary training."""
        self._in_boundary = False
        self._is_beside = self._is_checkpointing
        self.times_task = self._made * _GOLDEN % 1.0 < self._share and not self._is_beside
        if self.times_task or self._is_beside:
            self._since, self._own, self._standing = self._clock(), 0.0, 0.0

    def checkpoint_begun(self) -> None:
        """A checkpoint is ordered or being written: this step and those after it do not count."""
        self._is_checkpointing, self.times_task = True, False

    def checkpoint_done(self) -> None:
        """No checkpoint is being written any more: the next step counts again."""
        self._is_checkpointing = False

    @property
    def usual_step_s(self) -> float:
        """The median of the last timed steps, in seconds; 0 before the first one. Any thread may ask."""
        return statistics.median(self._usual.copy() or (0.0,))

    def taken_beside(self) -> list[float]:
        """Return the seconds of the whole steps beside a checkpoint since the last call. Any one thread may call.

        A step that contains the copy is none of them. Times between epochs and pauses are in no step.
        """
        return [self._beside.popleft() for _ in range(len(self._beside))]

    # -- around an epoch's end -----------------------------------------------------------------------------------------

    def trained(self) -> None:
        """Start timing the boundary: the last step of an epoch is reported."""
        if self._steps >= TIMED_STEPS:
            self._add_value("training_degradation", 100.0 * (1.0 - self._own_s / self._whole_s))
            self._steps, self._whole_s, self._own_s = 0, 0.0, 0.0
            self._share = _TIMED
        if self._bytes is not None:
            staged = self._ours()
            more = staged.whole + max(0, self._own_bytes(staged) - self._bytes)
            self._add_value("memory_overhead", 100.0 * more / self._bytes)
        self._in_boundary, self._before, self._elsewhere = True, self._spent(), Spent()
        self._adapted = self._adapted_ran = 0.0
        with self.apart():
            for name, percent in self._shares().items():
                self._add_value(name, percent)

    def _own_bytes(self, staged: Staged) -> int:
        """Return the bytes of the process without staging memory."""
        return self._held(self._device) - staged.unshared

    def went_on(self) -> None:
        """End timing the boundary: the next epoch may begin."""
        if self._in_boundary:
            spent = self._spent() - self._before - self._elsewhere
            took = max(0.0, spent.clock)
            # Two threads can wait at one time, or one while another runs.
            self._add_apart(st.BOUNDARY, took, max(0.0, min(spent.waited, took - spent.ran)))
            if self._adapted:
                self._add_apart("adaptation", self._adapted, max(0.0, self._adapted - self._adapted_ran))
        self._in_boundary = False

    def adapted(self, seconds: float, ran: float) -> None:
        """A boundary order was carried out in this time. Those at an epoch's end are the boundary's adaptation.

        `ran`: the seconds in which this thread ran.
        """
        self._adapted += seconds
        self._adapted_ran += ran

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Leave the block's time out of the boundary. If blocks are nested, the outer one counts."""
        if self._nested:
            yield
            return
        if not self._in_boundary:
            yield
            return
        self._nested, begun = True, self._spent()
        try:
            yield
        finally:
            self._nested = False
            self._elsewhere += self._spent() - begun

    @contextmanager
    def standing(self) -> Iterator[None]:
        """Leave the block's time out of training too: the run is paused or frozen."""
        begun = self._clock()
        try:
            with self.apart():
                yield
        finally:
            self._standing += self._clock() - begun

    def _here(self) -> Spent:
        """As `_spent`, without the wait, which takes longer to read."""
        return Spent(self._clock(), 0.0, self._ran())

    def _spent(self) -> Spent:
        return Spent(self._clock(), self._waited(), self._ran())

    # -- what was measured ---------------------------------------------------------------------------------------------

    def taken(self) -> tuple[m.BudgetHistogram, ...]:
        """Return all measurements since the last call."""
        histograms, self._histograms = self._histograms, {}
        return m.tallies(histograms)

    def _add_apart(self, name: str, seconds: float, waited: float) -> None:
        """Add a duration without the wait in it."""
        budget = BUDGETS[name]
        self._add_value(name, st.in_unit(budget, seconds - waited), st.in_unit(budget, waited))

    def _add_value(self, name: str, value: float, waited: float | None = None) -> None:
        self._histograms[name] = with_one(
            self._histograms.get(name, Histogram()), value, self._limits.limit_of(name), waited
        )
