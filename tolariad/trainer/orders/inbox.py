"""Pending orders, and the table that says which order may be obeyed where.

Promises: orders are obeyed in the order of their arrival, except that one which must wait does not hold up the others.
An order to exit, and the end of the daemon, overtake every other order at every wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from tolariad.core import messages as m
from tolariad.trainer.errors import ToldToExit

if TYPE_CHECKING:
    from tolariad.channel import Activity, TrainerEnd
    from tolariad.core.messages.vocabulary import TrainerEffect
    from tolariad.trainer.orders.reporter import Progress, Reporter

# How long a wait without anything to do sleeps at most. Heartbeats are sent between two sleeps, so it must stay far
# below every limit on silence.
IDLE_S: Final = 0.05

_Received: TypeAlias = "tuple[TrainerEffect, bytes | None]"
_Order = TypeVar("_Order", bound="TrainerEffect")


class When(Enum):
    """When an order is obeyed. An `ANSWER` is taken by the wait that asked for it; without one it has no effect."""

    ON_ARRIVAL = "on arrival, at every wait"
    AT_BOUNDARY = "at a boundary, also while held"
    AT_BOUNDARY_UNLESS_HELD = "at a boundary, not while held"
    ANSWER = "by the wait that asked for it"
    TO_START = "by the wait for the start"


class Until(Enum):
    """The event before which an order may not be obeyed."""

    NOTHING = "nothing"
    RERUN_ENDED = "the steps of the journal were run again; not at an epoch's end"
    EPOCHS_ENDED = "they were, and every epoch has ended here that has ended in the journal"


class ObeyPoint(Enum):
    """The point of training at which the trainer obeys orders."""

    BOUNDARY = "between two steps"
    EPOCH_END = "after an epoch, before the order to continue"
    VALIDATED = "after a validation within an epoch, before the order to continue"
    HELD = "at a boundary, until it is released"


class Rule(NamedTuple):
    """How one type of order is treated.

    `is_of_branch`: drop the order if it is pending when a rollback commits, because it belongs to the abandoned branch.
    """

    when: When
    until: Until = Until.NOTHING
    is_of_branch: bool = False


RULES: Final[dict[type, Rule]] = {
    m.ExitTrainer: Rule(When.ON_ARRIVAL),
    # The batch that is being computed was taken before; the next ones are passed over.
    m.SetQuarantine: Rule(When.ON_ARRIVAL),
    m.SetMemoryPressure: Rule(When.ON_ARRIVAL),
    m.UseRing: Rule(When.ON_ARRIVAL),
    m.TakeSnapshot: Rule(When.ON_ARRIVAL),
    # Also at the gate: no update begins any more, and only the commit drops what is in progress.
    m.PrepareRollback: Rule(When.ON_ARRIVAL),
    m.CommitRollback: Rule(When.ON_ARRIVAL),
    m.AbortRollback: Rule(When.ON_ARRIVAL),
    m.CompareStates: Rule(When.ON_ARRIVAL),
    m.TrainFrom: Rule(When.TO_START),
    # A re-run repeats what happened: a checkpoint that is ordered meanwhile is taken after it. A checkpoint of an
    # epoch's end can only be taken there, in a re-run too.
    m.TakeCheckpoint: Rule(When.AT_BOUNDARY, Until.RERUN_ENDED, is_of_branch=True),
    m.AbortCheckpoints: Rule(When.AT_BOUNDARY, is_of_branch=True),
    m.EndTraining: Rule(When.AT_BOUNDARY_UNLESS_HELD, is_of_branch=True),
    # Also in a re-run: an accepted end never lies before the steps that the journal holds.
    m.SetEnd: Rule(When.AT_BOUNDARY),
    m.Hold: Rule(When.AT_BOUNDARY),
    m.Release: Rule(When.ANSWER),
    m.Continue: Rule(When.ANSWER, is_of_branch=True),
    # As every boundary order, but the branch that was analysed may be left: the kernel ends them with the rollback.
    m.MaskUnits: Rule(When.AT_BOUNDARY, Until.EPOCHS_ENDED, is_of_branch=True),
    m.GoOn: Rule(When.ANSWER, is_of_branch=True),
}


# The same for every kind, so that they act in the order in which they came. Plateaus of the epochs that have ended come
# before a new rate.
_BOUNDARY_ORDER: Final = Rule(When.AT_BOUNDARY, Until.EPOCHS_ENDED)


def rule_of(order: TrainerEffect) -> Rule:
    """Return how this order is treated."""
    if isinstance(order, m.BoundaryOrder):
        return RULES.get(type(order), _BOUNDARY_ORDER)
    return RULES[type(order)]


class Background(Protocol):
    """Work that runs beside training and may have results to report at every wait."""

    def tell(self) -> None:
        """Report results."""

    def tend(self) -> float | None:
        """At a boundary: report results, and begin pending work.

        Return the seconds until the next call. Return None if the work hangs: then no heartbeat is sent.
        """


class OrderInbox:
    """The receiving half of the trainer's end of the channel."""

    def __init__(self, end: TrainerEnd, reporter: Reporter, progress: Progress) -> None:
        self._end = end
        self._reporter = reporter
        self._progress = progress
        self._waiting: deque[_Received] = deque()
        self._handlers: dict[type, Callable[[Any], None]] = {}
        self._background: Background | None = None

    # -- construction --------------------------------------------------------------------------------------------------

    def register(self, kind: type[_Order], handler: Callable[[_Order], None]) -> None:
        """Let `handler` obey orders of this kind, when their rule allows it. Raises ValueError if there is one."""
        # The second would silently replace the first, whose part of the trainer would never be told.
        if kind in self._handlers:
            raise ValueError(f"{kind.__name__} has a handler already")
        self._handlers[kind] = handler

    def attend(self, background: Background) -> None:
        """Let this work report at every wait."""
        self._background = background

    # -- waiting -------------------------------------------------------------------------------------------------------

    @property
    def calls(self) -> bool:
        """Whether there is an order, a frozen page, or a daemon that is gone. It costs a few memory reads."""
        return self._end.needs_attention or bool(self._waiting)

    @property
    def has_orders(self) -> bool:
        """Whether there is an order, or the daemon has gone."""
        return self._end.order_pending or bool(self._waiting) or self._end.closed

    def wait(self, activity: Activity, timeout_s: float) -> None:
        """Send a heartbeat, sleep until an order arrives or the time is over, and receive orders.

        Raises ToldToExit, or an exception of the handler of an order that is obeyed on arrival.
        """
        # The heartbeat before the sleep: the daemon's limit for this activity applies to the sleep.
        self._reporter.beat(activity)
        if self._background is not None:
            self._background.tell()
        self._end.wait(timeout_s)
        self.take_in()

    def stand(self, activity: Activity) -> None:
        """Wait at a boundary, where background work may also begin. Raises as `wait`."""
        again_s = self.tend()
        # No heartbeat if background work hangs: the daemon must find the trainer silent, and end it.
        if again_s is not None:
            self._reporter.beat(activity)
        self._end.wait(IDLE_S if again_s is None else again_s)
        self.take_in()

    def tend(self) -> float | None:
        """At a boundary: let background work continue. Return the seconds until the next call, None if it hangs."""
        return self._background.tend() if self._background is not None else IDLE_S

    def take_in(self) -> None:
        """Receive orders: obey those whose rule says on arrival, queue the others. Raises as `wait`."""
        # Read everything that is there before deciding that the daemon is gone: its last order may be the one to exit.
        while (received := self._end.order()) is not None:
            order = received[0]
            # Before any pending order: those are left undone.
            if isinstance(order, m.ExitTrainer):
                raise ToldToExit("the daemon said so")
            rule = rule_of(order)
            if rule.when is When.ON_ARRIVAL:
                self._obey(order)
            else:
                self._waiting.append(received)
                # The start takes the order out of the queue. Its handler sees it now: a quarantine that arrives next is
                # obeyed on arrival, and the older list in this order must not overwrite it.
                if rule.when is When.TO_START and (handler := self._handlers.get(type(order))) is not None:
                    handler(order)
        # A trainer without a daemon must stop: what it would do now could never be recorded.
        if self._end.closed:
            raise ToldToExit("the daemon is gone")

    # -- obeying -------------------------------------------------------------------------------------------------------

    def take(
        self, kind: type[_Order], accept: Callable[[_Order], bool] = lambda _: True
    ) -> tuple[_Order, bytes | None] | None:
        """Remove and return the first pending order of this kind that is accepted, and its attachment; or None."""
        # The others stay where they are: they keep their order among themselves.
        for item in tuple(self._waiting):
            order, attachment = item
            if isinstance(order, kind) and accept(order):
                self._waiting.remove(item)
                return order, attachment
        return None

    def obey_at_boundary(self) -> None:
        """Receive orders, and obey every pending one that may be obeyed now."""
        self.take_in()
        self.obey_up_to(lambda _: False, ObeyPoint.BOUNDARY)

    def obey_up_to(self, is_answer: Callable[[TrainerEffect], bool], place: ObeyPoint) -> bool:
        """Obey orders that may be obeyed in this place, up to the one that is the answer. Return whether it came."""
        with self._kept() as kept:
            while self._waiting:
                # Remove it before it is obeyed: its handler may itself wait, and the queue is then walked from within.
                item = self._waiting.popleft()
                order = item[0]
                # Orders before the answer are obeyed first: the daemon sent the answer after them on purpose.
                if is_answer(order):
                    return True
                if self._must_wait(order, place):
                    kept.append(item)
                else:
                    self._obey(order)
        return False

    @contextmanager
    def _kept(self) -> Iterator[list[_Received]]:
        """Keep the orders in the list pending, before later ones, even if a rollback unwinds the block."""
        kept: list[_Received] = []
        try:
            yield kept
        finally:
            self._waiting.extendleft(reversed(kept))

    def _must_wait(self, order: TrainerEffect, place: ObeyPoint) -> bool:
        rule, progress = rule_of(order), self._progress
        if place is ObeyPoint.HELD and rule.when is not When.AT_BOUNDARY:
            # An answer waits for the step or the epoch's end that asks for it.
            return True
        if place is ObeyPoint.VALIDATED:
            # Only a checkpoint of the state that was validated: the boundary, with all others, comes after it.
            return not isinstance(order, m.TakeCheckpoint)
        match rule.until:
            case Until.NOTHING:
                return False
            case Until.RERUN_ENDED:
                return progress.rerunning and place is not ObeyPoint.EPOCH_END
            case Until.EPOCHS_ENDED:
                # In a re-run the script says which orders acted where. A new one that acted between them would give
                # re-run steps other rates than the journal has.
                return progress.rerunning or progress.is_behind

    def _obey(self, order: TrainerEffect) -> None:
        when = rule_of(order).when
        if when is When.ANSWER:
            # No wait asked for it: a Release without a Hold, or a Continue of a past epoch, may cross with a restart.
            return
        handler = self._handlers.get(type(order))
        # An order that nobody obeys must not vanish: the daemon has recorded it, and would wait for its end for ever.
        if handler is None or when is When.TO_START:
            raise RuntimeError(f"{type(order).__name__} cannot be obeyed after step {self._progress.step}")
        handler(order)

    def drop_of_branch(self) -> list[m.TakeCheckpoint]:
        """Drop the orders that belong to the branch that a rollback leaves. Return the checkpoints among them."""
        # The checkpoints are returned because each was begun in the journal: the caller reports that it was not made.
        left = [order for order, _ in self._waiting if isinstance(order, m.TakeCheckpoint)]
        self._waiting = deque(item for item in self._waiting if not rule_of(item[0]).is_of_branch)
        return left
