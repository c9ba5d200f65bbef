"""Orders for checkpoints and snapshots, carried out where training stands: captured at a boundary's fence, told of when done.

Promises: nothing is captured that is not durable, and nothing whose step was not reported; an epoch's own checkpoint is of
that epoch's end. It must not know: what is in a checkpoint, how it is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tolariad.channel import Activity
from tolariad.core.checkpoints.words import AbortCheckpoints, CheckpointReason, TakeCheckpoint
from tolariad.core.snapshots.words import TakeSnapshot, UseRing
from tolariad.trainer.orders import IDLE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tolariad.trainer.checkpoints.save import Saver
    from tolariad.trainer.checkpoints.snapshot import Position
    from tolariad.trainer.health.stopwatch import Stopwatch
    from tolariad.trainer.orders import Link
    from tolariad.trainer.rollback import SnapshotHandler

# How often a trainer that stands looks after what is being written.
_WRITING_S: Final = 0.002
# An epoch's end is what these are to hold: they wait for the writer where they are, the others at later boundaries.
_OF_THIS_BOUNDARY: Final = frozenset({CheckpointReason.EPOCH, CheckpointReason.BEST})


class CheckpointHandler:
    """One trainer's checkpoints and snapshots: background work of its inbox."""

    def __init__(
        self,
        saver: Saver,
        snapshots: SnapshotHandler,
        stopwatch: Stopwatch,
        link: Link,
        *,
        fence: Callable[[], None],
        position: Callable[[], Position],
    ) -> None:
        """`fence` returns when the last step is reported and durable; `position` says where training stands."""
        self._saver = saver
        self._snapshots = snapshots
        self._stopwatch = stopwatch
        self._reporter, self._inbox, self._progress = link.reporter, link.inbox, link.progress
        self._wait_until_durable = fence
        self._position = position
        self._inbox.register(TakeCheckpoint, self._take)
        self._inbox.register(AbortCheckpoints, self._abort)
        self._inbox.register(UseRing, snapshots.obey)
        self._inbox.register(TakeSnapshot, snapshots.obey)
        self._inbox.attend(self)

    def _take(self, order: TakeCheckpoint) -> None:
        """Note the order; capture at once if nothing is being written."""
        with self._stopwatch.apart():
            self._saver.order(order)
            self.tend()
            if order.reason in _OF_THIS_BOUNDARY:
                while self._saver.waits:
                    self._saver.hurry()
                    self._inbox.stand(Activity.CHECKPOINT)

    def _abort(self, order: AbortCheckpoints) -> None:
        """Give up what waits, and what is being written of a later step."""
        with self._stopwatch.apart():
            self._saver.abort(order.beyond_step, order.why)
            self.tend()

    def tend(self) -> float | None:
        """At a boundary: report what was written, capture what waits at this step's fence.

        When to look again, in seconds; None while a write hangs.
        """
        saver = self._saver
        if not saver.is_prepared:
            saver.prepare(self._position())
        if not self._snapshots.is_idle and not self._progress.rerunning:
            self._tend_snapshots()
        if saver.is_idle:
            return IDLE_S
        with self._stopwatch.apart():
            return self._tend_checkpoints()

    def _tend_snapshots(self) -> None:
        with self._stopwatch.apart():
            self._snapshots.tend(self._position(), self._fence, self._inbox.applied_cause, self._saver.parent)
            self.tell()

    def _tend_checkpoints(self) -> float | None:
        saver = self._saver
        while True:
            self.tell()
            if not saver.may_capture:
                return _WRITING_S if saver.moves else None
            self._fence()
            copied = saver.capture(self._position(), self._inbox.applied_cause)
            if copied is not None:
                self._reporter.report(copied)

    def _fence(self) -> None:
        """Return when the last step is reported and durable; a copy follows."""
        self._wait_until_durable()
        self._reporter.beat(Activity.CHECKPOINT)

    def tell(self) -> None:
        """Report the checkpoints and snapshots that were taken or failed."""
        while (report := self._saver.finished() or self._snapshots.finished()) is not None:
            self._reporter.report(report)
