"""The boundary: orders are obeyed between two steps, at the ends of epochs, and while the run is held.

Promises: before an order is obeyed, the last step is reported. While no update may begin, the trainer waits at a
boundary, where orders can be obeyed, and not at the gate.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from tolariad import failpoints
from tolariad.channel import Activity
from tolariad.core import messages as m
from tolariad.trainer.orders.inbox import IDLE_S, ObeyPoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from tolariad.core.messages.vocabulary import TrainerEffect
    from tolariad.trainer.orders.gate import Link


class Boundary:
    """Obeys Hold and EndTraining itself; other orders go to the handlers that are registered with the inbox."""

    def __init__(
        self,
        link: Link,
        *,
        before_obeying: Callable[[], None] = lambda: None,
        standing: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`before_obeying` reports the last step, if its numbers were still in flight from a device.

        `standing` encloses the time that training waits on purpose, so that it is not measured as training.
        """
        self._page, self._progress = link.page, link.progress
        self._reporter, self._inbox = link.reporter, link.inbox
        self._before_obeying = before_obeying
        self._standing = standing
        self._is_held = False
        self.told_to_end = False
        self._inbox.register(m.Hold, self._hold)
        self._inbox.register(m.EndTraining, self._end_training)

    # -- between two steps ---------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Obey pending orders. Return when the next step may begin. Raises ToldToExit, or an exception of a handler."""
        reporter, inbox = self._reporter, self._inbox
        # The activity of the step that begins right after this: the daemon's limit for it applies from now on.
        next_ = Activity.RERUN if self._progress.rerunning else Activity.STEP
        reporter.beat(next_)
        if failpoints.armed:
            failpoints.reached("boundary")
        # An order that arrives after this look either closes the gate or waits for the next boundary.
        is_called = inbox.calls
        if is_called:
            # First: an order names the last applied step in its answer, and a capture contains it. A step whose numbers
            # are still on a device would be reported after both.
            self._before_obeying()
            if inbox.has_orders:
                inbox.obey_at_boundary()
        inbox.tend()
        if is_called and self._must_stand:
            with self._standing():
                # Orders are obeyed here although no update may begin. One of them may open the gate, such as the first
                # checkpoint of a run.
                while self._must_stand:
                    inbox.stand(Activity.GATE)
                    inbox.obey_at_boundary()
        if reporter.activity is not next_:
            # A first step may take long; standing here may not: the daemon's limits differ by activity.
            reporter.beat(next_)

    @property
    def _must_stand(self) -> bool:
        """Whether to wait here: a halt stops a re-run too, but a closed gate does not, because its end may open it."""
        page = self._page
        return page.frozen and (page.halted or not self._progress.rerunning)

    def _end_training(self, _: m.EndTraining) -> None:
        # The loop reads it after the boundary: ending from in here would leave later orders of this boundary undone.
        self.told_to_end = True

    def _hold(self, _: m.Hold) -> None:
        """Wait until released. A stop may need a checkpoint of this step, so some orders are obeyed meanwhile."""
        self._reporter.report(m.HeldReport(step=self._progress.step, rerunning=self._progress.rerunning))
        # A pause and a stop may each send a Hold before the first is answered. Both are answered; the wait is one, and
        # one Release ends it.
        if self._is_held:
            return
        self._is_held = True
        try:
            with self._standing():
                while not self._inbox.obey_up_to(_is_release, ObeyPoint.HELD):
                    self._inbox.stand(Activity.HELD)
        finally:
            # A rollback leaves the wait by an exception. The daemon sends Hold again if the run is still paused then.
            self._is_held = False

    # -- waiting for one order -----------------------------------------------------------------------------------------

    def wait_for_start(self) -> tuple[m.TrainFrom, bytes | None]:
        """Return the order to train and its attachment. Other orders wait until training is at a boundary."""
        while (found := self._inbox.take(m.TrainFrom)) is None:
            self._inbox.wait(Activity.BUILD, IDLE_S)
        return found

    def wait_for_continue(self, epoch: int) -> None:
        """Return when the epoch after `epoch` may begin. Obey other orders meanwhile."""
        self._wait_for_continue(epoch, 0, ObeyPoint.EPOCH_END)

    def wait_after_validation(self, epoch: int, batch: int) -> None:
        """Return when the validation after `batch` of `epoch` is recorded. Take the checkpoint that it leads to."""
        self._wait_for_continue(epoch, batch, ObeyPoint.VALIDATED)

    def _wait_for_continue(self, epoch: int, batch: int, point: ObeyPoint) -> None:
        # Only the answer for this place: a Continue of another one may still be in flight, and has no effect.
        def goes_on(order: TrainerEffect) -> bool:
            return isinstance(order, m.Continue) and (order.epoch, order.batch) == (epoch, batch)

        while not self._inbox.obey_up_to(goes_on, point):
            self._inbox.stand(Activity.END)

    def serve_until_exit(self, situation: Callable[[], object] = lambda: None) -> None:
        """After the last epoch: obey orders until ToldToExit is raised, or until `situation` returns something else."""
        before = situation()
        while situation() == before:
            self._inbox.obey_at_boundary()
            self._inbox.stand(Activity.END)

    # -- rollback ------------------------------------------------------------------------------------------------------

    def leave_branch(self) -> list[m.TakeCheckpoint]:
        """Drop the orders of the branch that a rollback leaves. Return the checkpoints among them."""
        # A limit that the abandoned branch reached does not end the new one. The kernel says so again when the run
        # reaches it.
        self.told_to_end = False
        return self._inbox.drop_of_branch()


def _is_release(order: TrainerEffect) -> bool:
    return isinstance(order, m.Release)
