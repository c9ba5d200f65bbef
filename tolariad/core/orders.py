"""An operator's orders: the rule that validates each, and returns the fact that accepts it or a refusal.

To add one: its command and its fact in the vocabulary, its rule, a row here, and in core.reactions what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from tolariad.core.control import rules as control_rules
from tolariad.core.control import words as cv
from tolariad.core.decision import Decision
from tolariad.core.health import emergency_rules as emergency
from tolariad.core.health import emergency_words as em
from tolariad.core.health import quarantine_rules
from tolariad.core.health import quarantine_words as qv
from tolariad.core.rates import rules as rate_rules
from tolariad.core.rates import words as lv
from tolariad.core.rollback import rules as rollback_rules
from tolariad.core.rollback import words as rb
from tolariad.core.state import RunState
from tolariad.core.vocabulary import Actor, AnyCommand

# Takes the state, the command and who gave it.
Order: TypeAlias = Callable[[RunState, Any, Actor], Decision]

ORDERS: Final[Mapping[type[AnyCommand], Order]] = {
    cv.Pause: control_rules.pause,
    cv.Resume: control_rules.resume,
    cv.Stop: control_rules.stop,
    cv.Checkpoint: control_rules.checkpoint,
    cv.Note: control_rules.note,
    lv.LrSet: rate_rules.order,
    rb.Rollback: rollback_rules.order,
    em.RaiseEmergency: emergency.order,
    qv.QuarantineAdd: quarantine_rules.order_to_add,
    qv.QuarantineRemove: quarantine_rules.order_to_remove,
}
