"""decide(state, input, now): which events, which effects, which answer. The table of reactions says what follows from what.

Promises: a pure function; what it refuses leaves no trace but an answer. The recorder sees to it that what was decided is
durable before anybody acts on it.
"""

from __future__ import annotations

from tolariad.core.engine import Decided
from tolariad.core.inputs import Input, Now, ReportReceived
from tolariad.core.reactions import ENGINE
from tolariad.core.rollback import ask as rollback
from tolariad.core.state import RunState
from tolariad.core.steps.rules import next_step
from tolariad.core.steps.words import StepReport


def decide(state: RunState, given: Input, now: Now) -> Decided[RunState]:
    """Return what follows from one input, with the state after it. Raises TooDeepError on a defect of the table."""
    if type(given) is not ReportReceived:
        return ENGINE.decide(state, given, now)
    report = given.report
    # The direct path of a step: its event is made with its stamp, and the engine is entered only if something follows.
    if type(report) is StepReport and (event := next_step(state, report, now)) is not None:
        return ENGINE.after(state, event, now)
    return ENGINE.decide(state, report, now)


def overdue(state: RunState, now: Now) -> Input | None:
    """Return what is to be decided because so much time has passed. The kernel asks in every turn, once a second at least."""
    return rollback.overdue(state, now.mono)
