"""The rows of the strategy in the table of reactions: its answers, commands, orders and votes.

The rules that ask it are in the rows of what they follow from, in `core.reactions`.
"""

from __future__ import annotations

from typing import Final

from tolariad.core import inputs as given
from tolariad.core.boundary import rules as boundary_rules
from tolariad.core.checkpoints import rules as checkpoint_rules
from tolariad.core.checkpoints import words as ck
from tolariad.core.control import rules as control_rules
from tolariad.core.control import words as cv
from tolariad.core.engine import Row, on
from tolariad.core.health import budget_rules, detection_rules, emergency_rules
from tolariad.core.health import budget_words as bv
from tolariad.core.health import words as hv
from tolariad.core.orders import ADAPTATIONS
from tolariad.core.rates import hyper_words as hp
from tolariad.core.rates import words as lv
from tolariad.core.rollback import rules as rollback_rules
from tolariad.core.rollback import words as rb
from tolariad.core.run import words as rv
from tolariad.core.seeds import words as sd
from tolariad.core.state import RunState
from tolariad.core.strategy import rules as strategy_rules
from tolariad.core.strategy import words as gv

# The ends of its boundary orders.
STRATEGY_APPLIED: Final = (
    hp.HyperparametersChanged,
    hp.HyperparametersAborted,
    gv.StrategyStateKept,
    gv.StrategyStateDropped,
)

STRATEGY: Final[tuple[Row[RunState], ...]] = (
    # -- the strategy --------------------------------------------------------------------------------------------------
    on(
        given.StrategyReply,
        strategy_rules.answered,
        makes=(gv.StrategyStateGiven, gv.StrategyAnswered, gv.StrategyTimedOut, gv.StrategyAnswerVoided),
    ),
    on(given.StrategyOverdue, strategy_rules.overdue, makes=(gv.StrategyTimedOut,)),
    on(given.VoteGiven, strategy_rules.voted, makes=(gv.StrategyVoted,)),
    on(hp.HyperparametersOrdered, boundary_rules.send),
    on(gv.StrategyStateGiven, boundary_rules.send),
    # The order to continue comes last, after every order of the answer.
    on(
        gv.StrategyAnswered,
        budget_rules.exceeded,
        strategy_rules.command,
        boundary_rules.go_on_closed,
        makes=(bv.BudgetExceeded, gv.StrategyCommanded),
    ),
    on(
        gv.StrategyTimedOut,
        budget_rules.exceeded,
        emergency_rules.after_open_breaker,
        boundary_rules.go_on_closed,
        makes=(bv.BudgetExceeded, hv.ConservativeModeEntered),
    ),
    on(
        gv.StrategyCommanded,
        strategy_rules.obey(control_rules.received(ADAPTATIONS)),
        makes=(
            cv.CommandRefused,
            cv.PauseRequested,
            lv.RateOrdered,
            hp.HyperparametersOrdered,
            sd.SeedMoveOrdered,
            rb.RollbackRequested,
            hv.EmergencyRaised,
            gv.BreakerSet,
        ),
    ),
    on(gv.BreakerSet, emergency_rules.after_open_breaker, makes=(hv.ConservativeModeEntered,)),
    # A refusal has the consequences of the trainer's.
    on(
        gv.StrategyVoted,
        rollback_rules.voted,
        detection_rules.after_refusal,
        emergency_rules.after_refusal,
        checkpoint_rules.instead_of_refused,
        makes=(
            rb.RollbackEscalated,
            rb.RollbackAborted,
            hv.ConservativeModeEntered,
            rb.RollbackBegun,
            rv.RunFrozen,
            ck.CheckpointBegun,
        ),
    ),
)
