"""Facts that are recorded as they are told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tolariad.core.control import words as cv
from tolariad.core.decision import Decision
from tolariad.core.inputs import ReportUnusable, Scheduled, TelemetryCounted
from tolariad.core.rates import optimizer_words as ov
from tolariad.core.trainer.slice import refused

if TYPE_CHECKING:
    from tolariad.core.engine import At
    from tolariad.core.state import RunState


def scheduled(_: RunState, given: Scheduled, __: At[RunState]) -> Decision:
    """Cores and scheduling class, as the system gave them."""
    return Decision((given.recorded,))


def telemetry_dropped(state: RunState, given: TelemetryCounted, _: At[RunState]) -> Decision | None:
    """Telemetry messages that were dropped, unless space is short."""
    if state.disk.low is not None:
        return None
    return Decision((cv.TelemetryDropped(dropped=given.dropped, skippable=True),))


def rebuild(_: RunState, report: ov.RebuildReport, __: At[RunState]) -> Decision:
    """What the trainer did with its optimizer."""
    return Decision((report.told,))


def report_unusable(state: RunState, given: ReportUnusable, _: At[RunState]) -> Decision:
    """Nothing that this trainer reports can be trusted."""
    return refused(state, given.why)
