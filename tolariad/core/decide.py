"""decide(state, input, now): the events, effects and answer that follow from an input, by the table of reactions.

Promises: a pure function. A refused input leads to an answer only. The recorder makes a decision durable before
anything acts on it.
"""

from __future__ import annotations

from tolariad.core.engine import Decided
from tolariad.core.inputs import Input, Now, ReportReceived
from tolariad.core.reactions import ENGINE
from tolariad.core.rollback import ask as rollback
from tolariad.core.state import RunState
from tolariad.core.steps.rules import next_step
from tolariad.core.steps.words import StepReport
from tolariad.core.strategy import ask as strategy


def decide(state: RunState, given: Input, now: Now) -> Decided[RunState]:
    """Return what follows from one input, with the state after it. Raises TooDeepError if the table has a defect."""
    if type(given) is not ReportReceived:
        return ENGINE.decide(state, given, now)
    report = given.report
    # The direct path of a step: its event is made with its stamp, and the engine runs only if something follows.
    if type(report) is StepReport and (event := next_step(state, report, now)) is not None:
        return ENGINE.after(state, event, now)
    return ENGINE.decide(state, report, now)


def overdue(state: RunState, now: Now) -> Input | None:
    """Return the input that the passing of time has caused, or None.

    The kernel asks in every turn, at least once a second.
    """
    return rollback.rollback_overdue(state, now.mono) or strategy.strategy_overdue(state, now.mono)
