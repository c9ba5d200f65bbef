"""The trainer of a rank that is not 0: it does what rank 0 says, when it says it, and gives its pieces of the state.

Promises: it writes nothing into the run's folder, and reports nothing to the recorder.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tolariad.channel import Activity
from tolariad.core import messages as m
from tolariad.trainer.checkpoints.save import Saver
from tolariad.trainer.checkpoints.tree import NotCapturable
from tolariad.trainer.orders.boundary import Boundary
from tolariad.trainer.orders.gate import Gate, Link
from tolariad.trainer.orders.inbox import ObeyPoint, OrderInbox
from tolariad.trainer.orders.reporter import Progress, Reporter
from tolariad.trainer.ranks.pieces import own_pieces
from tolariad.trainer.ranks.stepping import StepperOfRanks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tolariad.channel import TrainerEnd
    from tolariad.trainer.checkpoints.snapshot import Position
    from tolariad.trainer.ranks.group import Follower

    Give = Callable[[str, Sequence[tuple[str, bytes]], str], None]

_WAIT_S: Final = 0.05


def _leave(_: object) -> None:
    """Remove nothing: the folder is rank 0's."""


class FollowerGate(Gate):
    """Opens when rank 0 says so."""

    def __init__(self, group: Follower, end: TrainerEnd, reporter: Reporter, inbox: OrderInbox) -> None:
        super().__init__(end, reporter, inbox)
        self._group, self._orders = group, inbox

    def wait(self) -> None:
        """Return when rank 0 has passed its gate."""
        while not self._group.may_leave:
            self._orders.wait(Activity.GATE, _WAIT_S)


class FollowerBoundary(Boundary):
    """Its waits are points of the group."""

    def __init__(self, group: Follower, link: Link, **more: Any) -> None:
        super().__init__(link, **more)
        self._group = group

    def stop(self) -> None:
        """Obey the orders that rank 0 obeys here. Return when it goes on."""
        if self._group.passes():
            return
        self._group.arrive()
        self._stay(ObeyPoint.BOUNDARY)

    def _stay(self, place: ObeyPoint) -> None:
        """Obey the orders that rank 0 obeys here, until it goes on."""
        while True:
            # Asked before the orders: those that came with the last word must be obeyed too.
            may_leave = self._group.may_leave
            self._inbox.take_in()
            self._inbox.obey_up_to(lambda _: False, place)
            if may_leave:
                return
            self._inbox.stand(Activity.GATE)

    def wait_for_start(self) -> tuple[m.TrainFrom, bytes | None]:
        """Return the order to train and its attachment."""
        self._group.arrive()
        return super().wait_for_start()

    def _wait_for_continue(self, *given: Any) -> None:
        self._group.arrive()
        super()._wait_for_continue(*given)
        # Rank 0 may still take a checkpoint here, before it obeys the order to go on. For that it needs this rank's
        # pieces, and waits for those of the checkpoint before.
        self._stay(ObeyPoint.VALIDATED)

    def serve_until_exit(self, situation: Callable[[], object] = lambda: None) -> None:
        """After the last epoch: obey orders until ToldToExit is raised, or until `situation` returns something else."""
        self._group.arrive()
        super().serve_until_exit(situation)


class PieceSaver(Saver):
    """Gives rank 0 this rank's pieces, when rank 0 takes a checkpoint."""

    def attend(self, give: Give) -> None:
        """`give`: sends the pieces of a checkpoint, or why there are none."""
        self._give = give

    def prepare(self, position: Position) -> None:  # noqa: ARG002 - a rank has little to copy
        """Reserve nothing."""
        self.is_prepared = True

    def capture(self, position: Position) -> None:
        """Send the pieces of this rank."""
        order = self._waiting.popleft()
        self._known.discard(order.id)
        try:
            self._give(order.id, own_pieces(self._setup, position), "")
        except NotCapturable as error:
            self._give(order.id, (), str(error))


class RanksOfFollower:
    """What a trainer of another rank is made of."""

    def __init__(self, group: Follower, give: Give, stepper: type[StepperOfRanks] = StepperOfRanks) -> None:
        """`give`: sends the pieces of a checkpoint to rank 0, or why there are none."""
        self.group, self._give = group, give
        self.stepper = partial(stepper, group)

    def link(self, end: TrainerEnd) -> Link:
        """Make the parts over this end of the channel."""
        progress = Progress()
        reporter = Reporter(end, progress)
        inbox = OrderInbox(end, reporter, progress)
        return Link(end.page, progress, reporter, inbox, FollowerGate(self.group, end, reporter, inbox))

    def boundary(self, link: Link, **more: Any) -> Boundary:
        """Return what obeys orders between two steps."""
        return FollowerBoundary(self.group, link, **more)

    def saver(self, *given: Any, **more: Any) -> Saver:
        """Return what gives pieces of checkpoints."""
        saver = PieceSaver(*given, **more, sweep=_leave)
        saver.attend(self._give)
        return saver
