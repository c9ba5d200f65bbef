"""Orders for checkpoints and snapshots, carried out where training stands: captured at a boundary's fence, told of when done.

Promises: nothing is captured that is not durable, and nothing whose step was not reported; an epoch's own checkpoint is of
that epoch's end. It must not know: what is in a checkpoint, how it is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tolariad.channel import Activity
from tolariad.core.vocabulary.checkpoints import AbortCheckpoints, CheckpointReason, TakeCheckpoint
from tolariad.trainer.orders import IDLE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tolariad.trainer.checkpoints.save import Saver
    from tolariad.trainer.checkpoints.snapshot import Position
    from tolariad.trainer.orders import Orders
    from tolariad.trainer.rollback import SnapshotDesk
    from tolariad.trainer.stopwatch import Stopwatch

# How often a trainer that stands looks after what is being written.
_WRITING_S: Final = 0.002
# An epoch's end is what these are to hold: they wait for the writer where they are, the others at later boundaries.
_OF_THIS_BOUNDARY: Final = frozenset({CheckpointReason.EPOCH, CheckpointReason.BEST})


class CheckpointDesk:
    """One trainer's checkpoints. `position` is where training stands, `settle` reports its last step.

    `orders`, to which it gives its own methods, is set before the first of them is called.
    """

    orders: Orders

    def __init__(
        self,
        saver: Saver,
        snapshots: SnapshotDesk,
        stopwatch: Stopwatch,
        position: Callable[[], Position],
        settle: Callable[[], None],
    ) -> None:
        self._saver = saver
        self._snapshots = snapshots
        self._stopwatch = stopwatch
        self._position = position
        self._settle = settle

    def obey(self, order: TakeCheckpoint | AbortCheckpoints) -> None:
        """Take note; what waits is captured at once where nothing is being written."""
        with self._stopwatch.apart():
            self._obey(order)

    def _obey(self, order: TakeCheckpoint | AbortCheckpoints) -> None:
        if isinstance(order, AbortCheckpoints):
            self._saver.abort(order.beyond_step, order.why)
        else:
            self._saver.order(order)
        self.tend()
        if isinstance(order, TakeCheckpoint) and order.reason in _OF_THIS_BOUNDARY:
            while self._saver.waits:
                self._saver.hurry()
                self.orders.stand(Activity.CHECKPOINT)

    def tend(self) -> float | None:
        """At a boundary: report what was written, capture what waits at this step's fence.

        When to look again, in seconds; None while a write hangs.
        """
        saver = self._saver
        if not saver.is_prepared:
            saver.prepare(self._position())
        if not self._snapshots.is_idle and not self.orders.rerunning:
            self._see_to_snapshots()
        if saver.is_idle:
            return IDLE_S
        with self._stopwatch.apart():
            return self._see_to()

    def _see_to_snapshots(self) -> None:
        with self._stopwatch.apart():
            self._snapshots.tend(self._position(), self._fence, self.orders.applied_cause, self._saver.parent)
            self.tell()

    def _see_to(self) -> float | None:
        saver = self._saver
        while True:
            self.tell()
            if not saver.may_capture:
                return _WRITING_S if saver.moves else None
            self._fence()
            saver.capture(self._position(), self.orders.applied_cause)

    def _fence(self) -> None:
        """The last step is reported and durable; what comes now is a copy."""
        self._settle()
        self.orders.fence()
        self.orders.beat(Activity.CHECKPOINT)

    def tell(self) -> None:
        """Report what became of those that were ordered, on disk and in memory."""
        while (report := self._saver.finished() or self._snapshots.finished()) is not None:
            self.orders.report(report)
