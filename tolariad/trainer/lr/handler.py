"""Between the rate controller and the daemon: report every violation, and the groups when they change.

Promise: violations found in a re-run are not reported, because they were recorded the first time.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from tolariad.core import messages as m
from tolariad.trainer.lr import source_lines
from tolariad.trainer.lr.guard import UNKNOWN_GROUP
from tolariad.trainer.tasks.given import codes_of

if TYPE_CHECKING:
    from tolariad.trainer.lr.controller import UnifiedLRController
    from tolariad.trainer.lr.guard import Violation
    from tolariad.trainer.orders import Link

# The first 100 violations of a kind are reported one by one, later ones by the hundred. A callback that changes a rate
# at every step must not fill the disk.
TOLD_SINGLY_MAX: Final = 100


class RateHandler:
    """Belongs to one trainer. It reports the controller's violations from its creation on."""

    def __init__(self, rates: UnifiedLRController, link: Link, task: Any = None) -> None:
        """`task`: its code is searched for the line that steps a scheduler."""
        self._rates, self._task = rates, task
        self._reporter, self._progress = link.reporter, link.progress
        self._told: Counter[tuple[str, str]] = Counter()
        self._groups = rates.names
        rates.report_to(self._tell)

    @property
    def regrouped(self) -> bool:
        """Whether groups have changed since the last report. False during a re-run, which reports them at its end."""
        return self._rates.names is not self._groups and not self._progress.rerunning

    def tell_regrouped(self) -> None:
        """Report the groups if they have changed: they act from the next update on."""
        if self.regrouped:
            self.tell_groups(self._progress.step + 1)

    def tell_groups(self, before_step: int) -> None:
        """Report the controller's groups, which act from update `before_step` on."""
        self._groups = self._rates.names
        self._reporter.report(
            m.Told(event=m.LrGroupsChanged(applied_before_step=before_step, groups=self._rates.groups))
        )

    def audit_differed(self, step: int, parameter: str, what: str) -> None:
        """Report a difference that the audit found, unless steps are re-run."""
        if not self._progress.rerunning:
            self._reporter.report(m.Told(event=m.AuditDiffered(step=step, parameter=parameter, what=what)))

    def _tell(self, violation: Violation) -> None:
        if self._progress.rerunning:
            return
        if violation.what.startswith(m.SCHEDULER_STEPPED):
            # It steps in every step or epoch, for every group: one report is enough.
            if self._told[UNKNOWN_GROUP, violation.what]:
                return
            found = source_lines.of_call("step", codes_of(self._task), near="sched")
            violation = violation._replace(group=UNKNOWN_GROUP, where=found or violation.where)
        kind = (violation.group, violation.what)
        self._told[kind] += 1
        number = self._told[kind]
        if number > TOLD_SINGLY_MAX and number % TOLD_SINGLY_MAX:
            return
        self._reporter.report(
            m.Told(
                event=m.LrViolationDetected(
                    step=self._rates.global_step + 1,
                    group=violation.group,
                    what=violation.what,
                    expected=violation.expected,
                    found=violation.found,
                    where=violation.where,
                    count=1 if number <= TOLD_SINGLY_MAX else TOLD_SINGLY_MAX,
                )
            )
        )
