"""Where the trainer listens and waits: the boundary, the fence, the gate, and the ends of epochs.

Promises: orders are obeyed at boundaries and while waiting, in the order they came; no update begins while the page is
frozen or before the previous step's report is durable; a daemon that is gone, or says so, ends the process without
another update. It must not know: models, batches, files.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Final, TypeAlias

from tolariad.channel import Activity, TrainerEnd
from tolariad.core.vocabulary import (
    checkpoints,
    control,
    detection,
    learning_rate,
    quarantine,
    rollback,
    snapshots,
    steps,
    trainer,
)
from tolariad.failpoints import reached
from tolariad.trainer.errors import ToldToExit

if TYPE_CHECKING:
    from tolariad.core.vocabulary import Report, TrainerEffect

_GATE_S: Final = 0.001
IDLE_S: Final = 0.05
_UNDER_WAY_MAX: Final = 4096

_ROLLBACK: Final = (rollback.PrepareRollback, rollback.CommitRollback, rollback.AbortRollback)

_Received: TypeAlias = "tuple[TrainerEffect, bytes | None]"


def _no_rates(order: learning_rate.SetRate) -> None:
    raise RuntimeError(f"nobody here sets the rate of {order.group}")


def _no_rollback(order: rollback.PrepareRollback | rollback.CommitRollback | rollback.AbortRollback) -> None:
    raise RuntimeError(f"nobody here can go back for {order.rollback}")


def _no_snapshots(order: snapshots.UseRing | snapshots.TakeSnapshot) -> None:
    raise RuntimeError(f"nobody here takes snapshots: {order}")


def _nothing() -> None:
    """Every step was reported already."""


class Orders:
    """The trainer's end of the channel, with what is known of the orders so far.

    `behind`: the journal holds the end of an epoch that is not over here. `step` is the last applied step; `applied_cause` the highest cause of an order that was obeyed.
    """

    def __init__(
        self,
        end: TrainerEnd,
        take: Callable[[checkpoints.TakeCheckpoint | checkpoints.AbortCheckpoints], None],
        set_rate: Callable[[learning_rate.SetRate], None] = _no_rates,
        tend: Callable[[], float | None] = lambda: IDLE_S,
        tell: Callable[[], None] = lambda: None,
    ) -> None:
        """`take` carries out an order about checkpoints, `tell` reports what became of it, wherever training waits.

        `tend` is called where it stands at a boundary. It looks after what `take` has begun, and says in how many seconds
        it wants to be called again; None while what was begun hangs: then the trainer shows no life either.
        """
        self._end = end
        self._page = end.page
        self._take = take
        self._set_rate = set_rate
        self._tend = tend
        self._tell = tell
        self._waiting: deque[_Received] = deque()
        self._last_gated_number = self._last_strict_number = 0
        # Steps reported and perhaps not durable, with the time; looked through only where a lag is allowed.
        self._under_way: deque[tuple[int, int]] = deque(maxlen=_UNDER_WAY_MAX)
        self.step = 0
        self.applied_cause = 0
        self.rerunning = False
        self.behind = False
        self.told_to_end = False
        # Batches to pass over.
        self.quarantined: tuple[quarantine.Batches, ...] = ()
        # What the trainer still has to report of the last step is reported before anything is obeyed.
        self.before_obeying: Callable[[], None] = _nothing
        # Carries out the phases of a rollback; its commit unwinds whatever goes on.
        self.roll_back: Callable[[rollback.PrepareRollback | rollback.CommitRollback | rollback.AbortRollback], None]
        self.roll_back = _no_rollback
        # Whoever takes the time of training leaves out what is spent in here.
        self.standing: Callable[[], AbstractContextManager[None]] = nullcontext
        # Takes note of what is told of snapshots; they are taken at boundaries.
        self.snapshots: Callable[[snapshots.UseRing | snapshots.TakeSnapshot], None] = _no_snapshots
        self._activity = Activity.BUILD
        self._rollback_is_off = False

    # -- reports -------------------------------------------------------------------------------------------------------

    def report(self, report: Report) -> None:
        """Send a report; never blocks."""
        self._end.report(report)

    def report_gated(
        self,
        report: steps.StepSkippedReport | checkpoints.RerunReport | detection.InstabilityReport,
    ) -> None:
        """Send the report of a step that was skipped, of what is wrong with one, or of a re-run: the next update waits
        until it is durable.
        """
        self._last_gated_number = self._last_strict_number = self._end.report(report)

    def report_step(self, values: steps.StepValues) -> None:
        """The same of an applied step, the fields of its report. It may be on its way as long as the page allows."""
        number = self._last_gated_number = self._end.report_step(values)
        self._under_way.append((number, time.monotonic_ns()))

    def beat(self, activity: Activity) -> None:
        """Say that the trainer is alive, and at what."""
        self._activity = activity
        self._page.beat(self.step, time.monotonic_ns(), activity)

    def compiling(self) -> None:
        """Say that the compiler works, amid whatever is being done."""
        self._page.beat(self.step, time.monotonic_ns(), Activity.COMPILE)

    def compiled(self) -> None:
        """Say that what was being done goes on."""
        self.beat(self._activity)

    # -- boundary, gate, fence -----------------------------------------------------------------------------------------

    def boundary(self) -> None:
        """Obey what waits. While nothing may be updated, stand here, where orders can be obeyed, not at the gate."""
        next_ = Activity.RERUN if self.rerunning else Activity.STEP
        self.beat(next_)
        reached("boundary")
        # Whatever comes behind this look shuts the gate, or waits for the next boundary.
        is_called = self._end.needs_attention or bool(self._waiting)
        if is_called:
            self.before_obeying()
            if self._end.order_pending or self._waiting or self._end.closed:
                self._obey_all()
        self._tend()
        if is_called and self._page.frozen and self._must_stand:
            with self.standing():
                self._stand_while_frozen()
        if self._activity is not next_:
            # What comes now is not what was waited for: a first step may take long, standing at a gate may not.
            self.beat(next_)

    @property
    def _must_stand(self) -> bool:
        """A re-run goes on while the gate is only shut: its end may be what opens it. A halt stops it as anything else."""
        return self._page.halted or (self._page.frozen and not self.rerunning)

    def _stand_while_frozen(self) -> None:
        while self._must_stand:
            self.stand(Activity.GATE)
            self._obey_all()

    def gate(self) -> None:
        """Return when the next update may begin. Look once, mark, look again, then sleep a millisecond at a time."""
        reached("gate")
        if self._is_open():
            return
        self._page.set_waiting(self._last_gated_number)
        try:
            while not self._is_open():
                self._pause(Activity.GATE, _GATE_S)
        finally:
            self._page.set_waiting(0)

    def _is_open(self) -> bool:
        if self._page.allows_update_after(self._last_gated_number):
            return not self._end.closed
        # The flag last, as there.
        return self._is_within_lag() and not self._page.frozen and not self._end.closed

    def _is_within_lag(self) -> bool:
        """Only steps are not durable, the oldest of them was reported a moment ago, and such a moment is allowed."""
        durable, under_way = self._page.durable, self._under_way
        while under_way and under_way[0][0] <= durable:
            under_way.popleft()
        if durable < self._last_strict_number or not under_way:
            return False
        return time.monotonic_ns() - under_way[0][1] < self._page.lag_ns

    def fence(self) -> None:
        """Return when the last applied step is durable."""
        while self._page.durable < self._last_gated_number:
            self._pause(Activity.GATE, _GATE_S)

    # -- waiting for one order -----------------------------------------------------------------------------------------

    def wait_for_start(self) -> tuple[checkpoints.TrainFrom, bytes | None]:
        """The order to train and its attachment; others wait until training stands at a boundary."""
        while True:
            for item in tuple(self._waiting):
                if isinstance(item[0], checkpoints.TrainFrom):
                    self._waiting.remove(item)
                    self._note(item[0])
                    return item[0], item[1]
            self._pause(Activity.BUILD, IDLE_S)

    def wait_for_continue(self, epoch: int) -> None:
        """Return when `epoch` may be followed by the next; other orders are obeyed meanwhile."""
        while not self._take_continue(epoch):
            self.stand(Activity.END)

    def _take_continue(self, epoch: int) -> bool:
        with self._kept() as kept:
            while self._waiting:
                order, attachment = self._waiting.popleft()
                if isinstance(order, steps.Continue) and order.epoch == epoch:
                    self._note(order)
                    return True
                if isinstance(order, learning_rate.SetRate) and self._must_wait(order):
                    kept.append((order, attachment))
                else:
                    self._obey(order)
        return False

    @contextmanager
    def _kept(self) -> Iterator[list[_Received]]:
        """What is put in here waits on, before what came since, also where a rollback unwinds what goes on inside."""
        kept: list[_Received] = []
        try:
            yield kept
        finally:
            self._waiting.extendleft(reversed(kept))

    def _must_wait(self, order: TrainerEffect) -> bool:
        """A re-run repeats what happened: what would add to it waits until it is over.

        A rate waits longer, until every epoch has ended here that the journal says has: its plateaus come first.
        """
        match order:
            case checkpoints.TakeCheckpoint():
                return self.rerunning
            case learning_rate.SetRate():
                return self.rerunning or self.behind
            case _:
                return False

    def ask(self, report: detection.InstabilityReport) -> None:
        """Report what was found and return when the update is to be made all the same; a rollback unwinds instead."""
        self._last_gated_number = self._last_strict_number = self._end.report(report)
        while not self._take_go_on(report.step):
            self._pause(Activity.GATE, IDLE_S)

    def _take_go_on(self, step: int) -> bool:
        """Other orders wait for a boundary."""
        for item in tuple(self._waiting):
            if isinstance(item[0], detection.GoOn) and item[0].step == step:
                self._waiting.remove(item)
                self._note(item[0])
                return True
        return False

    def serve_until_exit(self) -> None:
        """After the last epoch: obey orders until ToldToExit is raised.

        Returns where a rollback was given up: an end that was told of while that was under way was told to nobody.
        """
        self._rollback_is_off = False
        while not self._rollback_is_off:
            self._obey_all()
            self.stand(Activity.END)

    # -- obeying -------------------------------------------------------------------------------------------------------

    def _pause(self, activity: Activity, timeout_s: float) -> None:
        """Beat, sleep until something arrives or the time is over, and take in what arrived."""
        self.beat(activity)
        self._tell()
        self._end.wait(timeout_s)
        self._take_in()

    def stand(self, activity: Activity) -> None:
        """The same at a boundary, where nothing else goes on than what is written beside. Raises ToldToExit."""
        again_s = self._tend()
        if again_s is not None:
            self.beat(activity)
        self._end.wait(IDLE_S if again_s is None else again_s)
        self._take_in()

    def stand_aside(self) -> None:
        """Amid a rollback: beat, and take in what comes. Raises what its commit raises, or ToldToExit."""
        self._pause(Activity.RESTORE, IDLE_S)

    def _take_in(self) -> None:
        """Move what arrived into the queue. An order to exit overtakes the others; so does the daemon's end."""
        while (received := self._end.order()) is not None:
            order = received[0]
            if isinstance(order, trainer.ExitTrainer):
                raise ToldToExit("the daemon said so")
            if isinstance(order, quarantine.SetQuarantine):
                # At once, and nothing is amiss with that: what is being computed was taken before.
                self._note(order)
                self.quarantined = order.batches
            elif isinstance(order, snapshots.UseRing | snapshots.TakeSnapshot):
                self._note(order)
                self.snapshots(order)
            elif isinstance(order, _ROLLBACK):
                # Also at the gate: no update begins any more, and what goes on is dropped only by the commit.
                self._note(order)
                self._rollback_is_off = isinstance(order, rollback.AbortRollback)
                self.roll_back(order)
            else:
                if isinstance(order, checkpoints.TrainFrom):
                    self.quarantined = order.quarantined
                self._waiting.append(received)
        if self._end.closed:
            raise ToldToExit("the daemon is gone")

    def _obey_all(self) -> None:
        self._take_in()
        # A re-run repeats what happened: a checkpoint ordered meanwhile is taken when it is over.
        with self._kept() as kept:
            while self._waiting:
                order, attachment = self._waiting.popleft()
                if self._must_wait(order):
                    kept.append((order, attachment))
                else:
                    self._obey(order)

    def _obey(self, order: TrainerEffect) -> None:
        self._note(order)
        match order:
            case control.Hold():
                with self.standing():
                    self._hold()
            case checkpoints.TakeCheckpoint() | checkpoints.AbortCheckpoints():
                self._take(order)
            case steps.EndTraining():
                self.told_to_end = True
            case learning_rate.SetRate():
                self._set_rate(order)
            case control.Release() | steps.Continue() | detection.GoOn():
                # A Release without a Hold, a Continue of an epoch that was over: both may cross with a restart.
                return
            case _:
                raise RuntimeError(f"{type(order).__name__} has no meaning at the boundary of step {self.step}")

    def _hold(self) -> None:
        """Stand still until released. Orders are obeyed meanwhile: a stop may want a checkpoint of this very step."""
        self.report(control.HeldReport(step=self.step, rerunning=self.rerunning))
        with self._kept() as kept:
            while True:
                while self._waiting:
                    item = self._waiting.popleft()
                    order = item[0]
                    if isinstance(order, control.Release):
                        self._note(order)
                        return
                    if isinstance(order, control.Hold):
                        self._note(order)
                        self.report(control.HeldReport(step=self.step, rerunning=self.rerunning))
                    elif self._may_obey_held(order):
                        self._obey(order)
                    else:
                        kept.append(item)
                self.stand(Activity.HELD)

    def _may_obey_held(self, order: TrainerEffect) -> bool:
        """Giving a checkpoint up is always possible; the rest is not, while what happened is repeated."""
        if isinstance(order, checkpoints.TakeCheckpoint | learning_rate.SetRate):
            return not self._must_wait(order)
        return isinstance(order, checkpoints.AbortCheckpoints)

    def checkpoints_left(self) -> list[checkpoints.TakeCheckpoint]:
        """Those that waited for a boundary of the line that a rollback leaves; what gives checkpoints up there has had its time."""
        ordered = [order for order, _ in self._waiting if isinstance(order, checkpoints.TakeCheckpoint)]
        left = (checkpoints.TakeCheckpoint, checkpoints.AbortCheckpoints)
        self._waiting = deque(item for item in self._waiting if not isinstance(item[0], left))
        return ordered

    def rolled_back(self, report: rollback.RolledBackReport) -> None:
        """Training stands elsewhere. What waited for the place that was left is forgotten, and no update begins before it is
        durable that this is so.
        """
        left = (steps.Continue, detection.GoOn, steps.EndTraining)
        self._waiting = deque(item for item in self._waiting if not isinstance(item[0], left))
        self.told_to_end = False
        self.step = report.step
        self._last_gated_number = self._last_strict_number = self._end.report(report)

    def _note(self, order: TrainerEffect) -> None:
        self.applied_cause = max(self.applied_cause, order.cause)
