"""Facts that are recorded as they arrive."""

from __future__ import annotations

from typing import Protocol

from tolariad.core.decision import Decision
from tolariad.core.engine import At
from tolariad.core.inputs import ReportUnusable, Scheduled
from tolariad.core.rates import optimizer_words as ov
from tolariad.core.trainer.ask import refused
from tolariad.core.trainer.slice import HasTrainer


class Reads(HasTrainer, Protocol):
    """The slices that these rules read."""


def scheduled(_: Reads, given: Scheduled, __: At[Reads]) -> Decision:
    """Record cores and scheduling class as the system granted them."""
    return Decision((given.recorded,))


def rebuild(_: Reads, report: ov.RebuildReport, __: At[Reads]) -> Decision:
    """Record what the trainer did with its optimizer."""
    return Decision((report.told,))


def report_unusable(state: Reads, given: ReportUnusable, _: At[Reads]) -> Decision:
    """Refuse the unusable report: nothing that this trainer reports can be trusted."""
    return Decision((refused(state, given.why),))
