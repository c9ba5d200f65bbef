"""The rules at boundaries: every waiting order is sent with its cause, and the trainer goes on after an epoch.

The end of an epoch has five parts. It is recorded (*begun*). A rule above `go_on` may record a BoundaryAsked (*asked*).
The answer, or its absence at the deadline, is recorded as a BoundaryClosed (*answered*). The rules of that event give
their orders (*ordered*). The last rule sends Continue (*continued*). If nothing is asked, all of it is one turn.

A rollback and the end of the trainer close an open question. The component that asked adds a rule to their rows, which
records its BoundaryClosed for an overdue answer. So every question has one end in the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.decision import Decision
from tolariad.core.engine import At


class Reads(st.HasRun, st.HasProgress, st.HasTrainer, st.HasBoundary, Protocol):
    """The slices that the rules of boundaries read."""


def send(state: Reads, event: m.OrderGiven, at: At[Reads]) -> Decision | None:
    """Send the order to a trainer that is built. A later one gets it after its order to train."""
    if not state.trainer.takes_orders:
        return None
    return Decision((), (replace(event.order, cause=at.seq),))


def send_waiting(state: Reads, _: m.ExecutionContextRecorded, __: At[Reads]) -> Decision | None:
    """Send every waiting order to a new trainer, after its order to train."""
    orders = tuple(replace(one.order, cause=one.cause.seq) for one in state.boundary.waiting)
    return Decision((), orders) if orders else None


# What a concern says of an order of its own that the trainer has obeyed: it acts, or why it does not after all, or that
# the trainer's word contradicts the journal.
Says = Callable[[Any, Any, m.BoundaryOrderReport], m.Acts | str | m.ReportRefused]


def answered(
    kinds: Mapping[type[m.BoundaryOrder], Says],
) -> Callable[[Reads, m.BoundaryOrderReport, At[Reads]], Decision | None]:
    """Return the rule that records the answer to an order. A kind that is not in `kinds` acts as it was ordered."""

    def rule(state: Reads, report: m.BoundaryOrderReport, _: At[Reads]) -> Decision | None:
        """Record that an order acts, or that it was refused. An order that has ended is skipped."""
        waiting = state.boundary.find(report.order)
        if waiting is None:
            return None
        says = kinds.get(type(waiting.order))
        found: m.Acts | str | m.ReportRefused = m.Acts(waiting.order)
        if report.refused or says is not None:
            found = report.refused or (says(state, waiting.order, report) if says is not None else "")
        match found:
            case str():
                event: m.Event = m.OrderAborted(order=waiting.order, why=found)
            case m.Acts(order, outcome):
                event = m.OrderActed(
                    order=order,
                    applied_before_step=report.applied_before_step,
                    number=state.boundary.acted + 1,
                    outcome=outcome,
                    by=waiting.by,
                    reason=waiting.reason,
                )
            case m.ReportRefused():
                return Decision((found,))
        return Decision((event.caused_by(waiting.cause),))

    return rule


def go_on(state: Reads, event: m.EpochFinished, _: At[Reads]) -> Decision | None:
    """Continue after an epoch's end, after every order of this boundary, unless a question is open."""
    asked = state.boundary.asked
    is_asked = asked is not None and asked.epoch == event.epoch
    return None if is_asked else Decision((), (m.Continue(epoch=event.epoch),))


def go_on_again(_: Reads, report: m.EpochReport, at: At[Reads]) -> Decision | None:
    """Continue after an epoch's end that was recorded before.

    No question is asked again: its orders are in the journal.
    """
    is_again = report.epoch <= at.was.progress.epoch_finished
    return Decision((), (m.Continue(epoch=report.epoch),)) if is_again else None


def go_on_validated(_: Reads, event: m.ValidationFinished, __: At[Reads]) -> Decision | None:
    """Continue after a validation within an epoch, after the checkpoint or the end that it leads to."""
    return Decision((), (m.Continue(epoch=event.epoch, batch=event.batch),)) if event.batch else None


def go_on_validated_again(_: Reads, report: m.ValidationReport, at: At[Reads]) -> Decision | None:
    """Continue after a validation within an epoch that was recorded before."""
    is_again = q.is_best_again(at.was, report)
    return Decision((), (m.Continue(epoch=report.epoch, batch=report.batch),)) if is_again else None


def go_on_closed(state: Reads, _: m.BoundaryClosed | m.RollbackBegun, at: At[Reads]) -> Decision | None:
    """Continue after a wait at an epoch's end: it was answered, is overdue, or the run rolls back."""
    asked = at.was.boundary.asked
    if asked is None or state.boundary.asked is not None or not state.trainer.alive:
        return None
    return Decision((), (m.Continue(epoch=asked.epoch),))
