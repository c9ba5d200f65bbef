"""Carry out orders for checkpoints and snapshots: capture at a boundary, after the fence, and report the result.

Promises: a capture contains only steps that are reported and durable. The checkpoint of an epoch is taken at its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tolariad.channel import Activity
from tolariad.core import messages as m
from tolariad.trainer.orders import IDLE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tolariad.trainer.checkpoints.save import Saver
    from tolariad.trainer.checkpoints.snapshot import Position
    from tolariad.trainer.health.stopwatch import Stopwatch
    from tolariad.trainer.orders import Link
    from tolariad.trainer.rollback import SnapshotHandler

# While the trainer waits, it checks the writer at this interval.
_WRITING_S: Final = 0.002
# These must hold the epoch's end, so training waits at this boundary until the writer is free. For others the order
# waits for a later boundary.
_OF_THIS_BOUNDARY: Final = frozenset({m.CheckpointReason.EPOCH, m.CheckpointReason.BEST})


class CheckpointHandler:
    """The checkpoints and snapshots of one trainer. The inbox calls it at boundaries."""

    def __init__(
        self,
        saver: Saver,
        snapshots: SnapshotHandler,
        stopwatch: Stopwatch,
        link: Link,
        *,
        fence: Callable[[], None],
        position: Callable[[], Position],
        digested: Callable[[int, str], None],
    ) -> None:
        """`fence` must return when the last step is reported and durable. `position` returns the current position.

        `digested` reports the digests of the state of a step, of which a checkpoint with this id was copied.
        """
        self._saver = saver
        self._snapshots = snapshots
        saver.read_memory_by(snapshots.copied)
        self._stopwatch = stopwatch
        self._reporter, self._inbox, self._progress = link.reporter, link.inbox, link.progress
        self._wait_until_durable = fence
        self._position = position
        self._digested = digested
        self._inbox.register(m.TakeCheckpoint, self._take)
        self._inbox.register(m.AbortCheckpoints, self._abort)
        self._inbox.register(m.UseRing, snapshots.obey)
        self._inbox.register(m.TakeSnapshot, snapshots.obey)
        self._inbox.attend(self)

    def _take(self, order: m.TakeCheckpoint) -> None:
        """Queue the order. Capture at once if nothing is being written."""
        with self._stopwatch.apart():
            self._saver.order(order)
            self.tend()
            if order.reason in _OF_THIS_BOUNDARY:
                while self._saver.waits:
                    self._saver.hurry()
                    self._inbox.stand(Activity.CHECKPOINT)

    def _abort(self, order: m.AbortCheckpoints) -> None:
        """Give up pending checkpoints, and one in flight of a later step."""
        with self._stopwatch.apart():
            self._saver.abort(order.beyond_step, order.why)
            self.tend()

    def tend(self) -> float | None:
        """Call at a boundary: report finished checkpoints, and capture pending ones after the fence of this step.

        Return the seconds after which to call again, or None while a write hangs.
        """
        saver = self._saver
        if not saver.is_prepared:
            saver.prepare(self._position())
        if not self._snapshots.is_idle and not self._progress.rerunning:
            with self._stopwatch.apart():
                self._snapshots.tend(self._position(), self._fence, saver.parent)
                self.tell()
        if saver.is_idle:
            return IDLE_S
        with self._stopwatch.apart():
            return self._tend_checkpoints()

    def _tend_checkpoints(self) -> float | None:
        saver = self._saver
        self._stopwatch.checkpoint_begun()
        while True:
            self.tell()
            if not saver.may_capture:
                return _WRITING_S if saver.moves else None
            self._fence()
            copied = saver.capture(self._position())
            if copied is not None:
                self._reporter.report(copied)
                self._digested(copied.step, copied.id)

    def _fence(self) -> None:
        """Wait until the last step is reported and durable. A copy follows."""
        self._wait_until_durable()
        self._reporter.beat(Activity.CHECKPOINT)

    def tell(self) -> None:
        """Report the checkpoints and snapshots that are complete or have failed."""
        while (report := self._saver.finished() or self._snapshots.finished()) is not None:
            self._reporter.report(report)
        if self._saver.is_idle:
            self._stopwatch.checkpoint_done()
