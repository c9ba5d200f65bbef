"""decide(state, input, now): the events, effects and answer that follow from an input, by the table of reactions.

Promises: a pure function. A refused input leads to an answer only. The recorder makes a decision durable before
anything acts on it.
"""

from __future__ import annotations

from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core.engine import Decided
from tolariad.core.rules.steps import next_step
from tolariad.core.rules.table.reactions import ENGINE
from tolariad.core.state.run_state import RunState


def decide(state: RunState, given: m.Input, now: m.Now) -> Decided[RunState]:
    """Return what follows from one input, with the state after it. Raises TooDeepError if the table has a defect."""
    if type(given) is not m.ReportReceived:
        return ENGINE.decide(state, given, now)
    report = given.report
    # The direct path of a step: its event is made with its stamp, and the engine runs only if something follows.
    if type(report) is m.StepReport and (event := next_step(state, report, now)) is not None:
        return ENGINE.after(state, event, now)
    return ENGINE.decide(state, report, now)


def overdue(state: RunState, now: m.Now) -> m.Input | None:
    """Return the input that the passing of time has caused, or None.

    The kernel asks in every turn, at least once a second.
    """
    return q.rollback_overdue(state, now.mono) or q.strategy_overdue(state, now.mono)
