"""Rank 0's trainer: it passes the gate for all, and lets orders act on all ranks at one place."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tolariad.channel import Activity
from tolariad.core import messages as m
from tolariad.trainer.checkpoints.save import Abort, Saver
from tolariad.trainer.orders.boundary import Boundary
from tolariad.trainer.orders.gate import Gate, Link
from tolariad.trainer.orders.inbox import OrderInbox
from tolariad.trainer.orders.reporter import Progress, Reporter
from tolariad.trainer.ranks.stepping import StepperOfRanks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tolariad.channel import TrainerEnd
    from tolariad.channel.rank_ends import LeaderEnd
    from tolariad.trainer.checkpoints.snapshot import Position
    from tolariad.trainer.ranks.group import Leader

    Pieces = Sequence[tuple[str, bytes]]


class LeaderGate(Gate):
    """After the gate is open, it lets the other ranks update too."""

    def __init__(self, group: Leader, end: TrainerEnd, reporter: Reporter, inbox: OrderInbox) -> None:
        super().__init__(end, reporter, inbox)
        self._group, self._orders = group, inbox
        self._captures: Callable[[], bool] = lambda: False

    def look_at(self, captures: Callable[[], bool]) -> None:
        """`captures`: whether a checkpoint is to be taken at the next boundary."""
        self._captures = captures

    def wait(self) -> None:
        """Return when the next update may begin on all ranks."""
        super().wait()
        self._group.end.collect()
        self._group.leave(quietly=not self._orders.calls and not self._captures())


class LeaderBoundary(Boundary):
    """Its waits are points of the group."""

    def __init__(self, group: Leader, link: Link, **more: Any) -> None:
        super().__init__(link, **more)
        self._group = group

    def stop(self) -> None:
        """Obey pending orders on all ranks. Return when the next step may begin."""
        if not self._group.passes():
            with self._group.point():
                super().stop()
            return
        next_ = Activity.RERUN if self._progress.rerunning else Activity.STEP
        self._reporter.beat(next_)
        self._inbox.tend()

    def wait_for_start(self) -> tuple[m.TrainFrom, bytes | None]:
        """Return the order to train and its attachment."""
        with self._group.point():
            return super().wait_for_start()

    def _wait_for_continue(self, *given: Any) -> None:
        with self._group.point():
            super()._wait_for_continue(*given)

    def serve_until_exit(self, situation: Callable[[], object] = lambda: None) -> None:
        """After the last epoch: obey orders until ToldToExit is raised, or until `situation` returns something else."""
        with self._group.point():
            super().serve_until_exit(situation)


class LeaderSaver(Saver):
    """Writes the pieces of all ranks into one checkpoint."""

    def attend(self, ranks: RanksOfLeader) -> None:
        """`ranks`: gives the other ranks' pieces."""
        self._ranks = ranks

    def capture(self, position: Position) -> m.StateCopiedReport | None:
        """Have all ranks copy their state at this point, and begin to write."""
        self._ranks.group.end.add(self._waiting[0])
        self._ranks.group.obey()
        return super().capture(position)

    def _pieces_of_others(self, checkpoint: str, tick: Callable[[], None]) -> Iterable[tuple[str, bytes]]:
        """Return the pieces of the other ranks, once all have come. Raises Abort."""
        return self._ranks.pieces(checkpoint, tick)


class RanksOfLeader:
    """What a trainer of rank 0 is made of."""

    def __init__(
        self,
        group: Leader,
        pieces: Callable[[str, Callable[[], None]], Pieces],
        stepper: type[StepperOfRanks] = StepperOfRanks,
    ) -> None:
        """`pieces` waits for those of a checkpoint, and calls the given function while it waits. It raises OSError."""
        self.group, self.pieces_of = group, pieces
        self.stepper = partial(stepper, group)

    def pieces(self, checkpoint: str, tick: Callable[[], None]) -> Pieces:
        """Return the pieces of the other ranks. Raises Abort."""
        try:
            return self.pieces_of(checkpoint, tick)
        except RuntimeError as error:
            raise Abort(str(error)) from error

    def link(self, end: LeaderEnd) -> Link:
        """Make the parts over this end of the channel."""
        progress = Progress()
        reporter = Reporter(end, progress)
        inbox = OrderInbox(end, reporter, progress)
        self.group.attend(end)
        self._gate = LeaderGate(self.group, end, reporter, inbox)
        return Link(end.page, progress, reporter, inbox, self._gate)

    def boundary(self, link: Link, **more: Any) -> Boundary:
        """Return what obeys orders between two steps."""
        return LeaderBoundary(self.group, link, **more)

    def saver(self, *given: Any, **more: Any) -> Saver:
        """Return what writes checkpoints."""
        saver = LeaderSaver(*given, **more)
        saver.attend(self)
        self._gate.look_at(lambda: saver.waits)
        return saver
