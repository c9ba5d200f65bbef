"""The trainer's part of the autopilot: it compares states when it is told to, and tells the detector what it is told.

A comparison is due after a given batch. Until then the batches of the newest updates are kept. It is made at the
boundary, and no update follows before the kernel has decided. Several ranks compare together, each on its share of the
batches, because a task's validation may wait for all of them; the numbers of rank 0 are reported.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from tolariad.channel import Activity
from tolariad.core import messages as m
from tolariad.core.calc.detection.autopilot import COMPARED
from tolariad.failpoints import reached
from tolariad.storage import CheckpointUnusable
from tolariad.trainer.checkpoints.restore import load
from tolariad.trainer.data.share import ELSEWHERE
from tolariad.trainer.health.comparing import measured

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tolariad.trainer.checkpoints.snapshot import Position
    from tolariad.trainer.orders import Link
    from tolariad.trainer.setup import Setup


class Insurer:
    """Makes the comparisons of one trainer. `order`: the one that is due. None: there is nothing to keep or to do."""

    def __init__(
        self,
        setup: Setup,
        link: Link,
        checkpoints: Path,
        settle: Callable[[], None],
        *,
        is_loop: bool,
    ) -> None:
        """`settle` reports the last step. `is_loop`: the user's own loop computes the losses."""
        self._setup, self._checkpoints, self._settle = setup, checkpoints, settle
        self._reporter, self._gate, self._progress = link.reporter, link.gate, link.progress
        # Not with exact sums: what follows must not depend on the number of ranks, and so on rank 0's share.
        own_loss = not is_loop and setup.training_step is None
        self._computes_loss = own_loss and not setup.settings.parallel.exact
        self.order: m.CompareStates | None = None
        self._groups: deque[tuple[Any, ...]] = deque(maxlen=COMPARED)
        self._last_step = 0
        link.inbox.register(m.CompareStates, self._due)

    def _due(self, order: m.CompareStates) -> None:
        self.order, self._last_step = order, self._progress.step
        self._groups.clear()

    def drop(self) -> None:
        """Forget the order: the branch that it was given on is left."""
        self.order = None
        self._groups.clear()

    def saw(self, group: tuple[Any, ...], step: int) -> None:
        """Keep these micro-batches if an update was made with them and a comparison is due. `step`: the last update."""
        if self.order is None or step == self._last_step:
            return
        self._last_step = step
        if self._computes_loss:
            self._groups.append(tuple(batch for batch in group if batch is not ELSEWHERE))

    def at_boundary(self, position: Position) -> None:
        """Make the comparison if it is due here, and report it."""
        order, progress = self.order, self._progress
        if order is None or progress.rerunning or progress.is_behind:
            return
        if (position.epoch, position.batch) < (order.epoch, order.batch):
            return
        self._settle()
        reached("comparison")
        report = m.ComparedReport(
            checkpoint=order.checkpoint.id,
            step=position.step,
            epoch=position.epoch,
            batch=position.batch,
            loud=self._setup.watch.loud,
        )
        ref = order.checkpoint
        try:
            loaded = load(self._checkpoints / ref.id, ref.manifest, self._beat)
            found = measured(self._setup, loaded, tuple(self._groups), self._beat, computes_loss=self._computes_loss)
        except CheckpointUnusable as unusable:
            # Nothing was measured: both ways are tried, or the run goes on.
            report = m.ComparedReport.of(report, refused=f"{unusable.file}: {unusable.why}")
        else:
            report = m.ComparedReport.of(report, measured=found)
        self.drop()
        reached("compared")
        # Gated: no update follows before the kernel has decided.
        self._gate.report(report)

    def _beat(self) -> None:
        self._reporter.beat(Activity.VALIDATE)
