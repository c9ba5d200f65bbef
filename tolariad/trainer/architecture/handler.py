"""Between the ledger and the daemon: changes are reported at the boundary after them, and repeated in a re-run.

Promises: no update of the changed model begins before the change is durable. A change that the journal holds is not
reported again. If a hook makes it again, it is compared with the journal; if no hook does, it is made from the journal.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from tolariad.core import messages as m
from tolariad.core.calc.architecture.by_order import is_by_order
from tolariad.trainer.step.rerun import Rerun, ScriptError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tolariad.trainer.optim.rate_controller import Told
    from tolariad.trainer.orders import Link
    from tolariad.trainer.setup import Setup

_log: Final = logging.getLogger(__name__)


class ArchitectureHandler:
    """Belongs to one trainer. `is_on`: hooks may change the model, or the journal says that they did.

    `waiting`: changes that the journal does not hold yet.
    """

    def __init__(self, setup: Setup, link: Link, rerun: Callable[[], Rerun]) -> None:
        """`rerun` returns the script that is followed."""
        self._setup, self._ledger = setup, setup.ledger
        self._reporter, self._gate, self._progress = link.reporter, link.gate, link.progress
        self._rerun = rerun
        # How many changes the journal holds.
        self.waiting: list[m.ArchitectureReport] = []
        self._known = 0
        self.is_on = self._ledger.can_grow
        self._ledger.report_to(self._made, self._rebuilt)
        setup.rates.report_rebuilds_to(self._rebuilt_unrecorded)

    def begin(self) -> None:
        """Training stands at a restored state: a start's, or a rollback's target."""
        script = self._rerun().changes
        self._known = max((len(self._ledger.changes), *(one.number for one in script)))
        self.waiting.clear()
        self.is_on = self._ledger.can_grow or not all(is_by_order(one.name) for one in script)

    def before_hook(self, before_step: int, epoch_ended: int) -> None:
        """A hook runs after the step before `before_step`, or after the validation of `epoch_ended` (else 0)."""
        self._ledger.allow(before_step, epoch_ended)

    def after_hook(self, before_step: int, epoch_ended: int) -> None:
        """The hook has ended: make the changes of the journal that it did not make."""
        self._ledger.forbid()
        for change in self._rerun().changes:
            if is_by_order(change.name):
                continue  # the script has the order that makes it
            is_due = (change.before_step, change.epoch_ended) == (before_step, epoch_ended)
            if is_due and change.number == len(self._ledger.changes) + 1:
                self._ledger.repeat(change)

    def one_more(self) -> None:
        """A boundary order has changed the model: the journal holds that by the answer to the order."""
        self._known += 1

    @property
    def has_news(self) -> bool:
        """Are there changes to report? During a re-run they wait for its end."""
        return bool(self.waiting) and not self._progress.rerunning

    def tell(self) -> None:
        """Report what waits. The next update waits until it is durable."""
        for report in self.waiting:
            self._gate.report(report)
        self._known += len(self.waiting)
        self.waiting.clear()

    def _made(self, change: m.ScriptChange) -> None:
        """A hook made a change."""
        rerun = self._rerun()
        if change.number > self._known:
            parameters = self._setup.parameters
            report = m.ArchitectureReport.of(change, applied_before_step=change.before_step, parameters=parameters)
            self.waiting.append(report)
            _log.info("the model changed: %s", shown(change))
            if not (self._progress.rerunning and rerun.goes_beyond(change.before_step - 1)):
                return
        recorded = next((one for one in rerun.changes if one.number == change.number), None)
        if recorded == change:
            return
        expected, found = shown(recorded) if recorded else "no change", shown(change)
        if not self._progress.rerunning:
            raise ScriptError(f"a hook made {found}, but the journal holds {expected}")
        rerun.differs(m.Difference(step=change.before_step - 1, field="architecture", expected=expected, found=found))

    def _rebuilt(self, told: Told) -> None:
        if not self._progress.rerunning:
            self._reporter.report(m.RebuildReport(told=told))

    def _rebuilt_unrecorded(self, told: Told) -> None:
        """A hook rebuilt an optimizer, outside of any change that is recorded."""
        self._rebuilt(told)
        if isinstance(told, m.OptimizerRebuildCommitted) and not self._progress.rerunning:
            self._ledger.say_unrecorded(self._progress.step)


def shown(change: m.ScriptChange) -> str:
    """A change in a sentence."""
    when = f"after epoch {change.epoch_ended}" if change.epoch_ended else f"before step {change.before_step}"
    return f"change {change.number}, {change.name} {change.arguments}, {when}"
