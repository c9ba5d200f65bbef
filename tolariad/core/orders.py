"""The table of orders: for each, the rule that accepts or refuses it, and the events that end it.

docs/contributing.md shows how to add one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from tolariad.core.checkpoints import words as ck
from tolariad.core.control import rules as control_rules
from tolariad.core.control import words as cv
from tolariad.core.control.rules import Order
from tolariad.core.health import emergency_rules, quarantine_rules
from tolariad.core.health import quarantine_words as qv
from tolariad.core.health import words as hv
from tolariad.core.pruning import mask_words as mk
from tolariad.core.pruning import rules as prune_rules
from tolariad.core.pruning import words as pr
from tolariad.core.rates import hyper_words as hp
from tolariad.core.rates import rules as rate_rules
from tolariad.core.rates import words as lv
from tolariad.core.rollback import rules as rollback_rules
from tolariad.core.rollback import words as rb
from tolariad.core.rollback.sentences import rollback_answer
from tolariad.core.run import limit_rules
from tolariad.core.run import words as rv
from tolariad.core.seeds import rules as seed_rules
from tolariad.core.seeds import words as sd
from tolariad.core.strategy import rules as strategy_rules
from tolariad.core.strategy import words as gv
from tolariad.core.text.sentences import sentence

_RUN_ENDS: Final = (rv.RunCompleted, rv.RunFailed, rv.RunStopped)


def _seed_order(rule: Callable[[Any, Any], Any]) -> Order:
    return Order(rule, done=(sd.SeedMoved,), failed=(sd.SeedMoveAborted,), overtaken_by=_RUN_ENDS)


ORDERS: Final[Mapping[type[cv.Command], Order]] = {
    cv.Pause: Order(
        control_rules.pause,
        done=(rv.RunPaused,),
        overtaken_by=(cv.ResumeRequested, cv.StopRequested, rv.RunFrozen, *_RUN_ENDS),
    ),
    cv.Resume: Order(
        control_rules.resume, done=(rv.RunResumed,), overtaken_by=(cv.StopRequested, rv.RunFrozen, *_RUN_ENDS)
    ),
    # A stop ends with the end of a stronger one that follows it. A run that completes meanwhile needs no stop.
    cv.Stop: Order(
        control_rules.stop,
        done=(rv.RunStopped,),
        done_by_any=(rv.RunStopped,),
        # A stop may end without its last checkpoint; its answer then gives the reason.
        told=lambda stopped: stopped.why,
        overtaken_by=(rv.RunCompleted, rv.RunFailed),
    ),
    cv.Checkpoint: Order(
        control_rules.checkpoint,
        done=(ck.CheckpointCommitted,),
        failed=(ck.CheckpointAborted,),
        overtaken_by=_RUN_ENDS,
    ),
    # The trainer gets it at once, and the next trainer with its order to train.
    # The answer does not name the giver of the order, who reads it.
    cv.Extend: Order(limit_rules.order, done=(cv.EndOrdered,), told=lambda end: sentence(replace(end, actor=None))),
    cv.Note: Order(control_rules.note, done=(cv.NoteAdded,), done_by_any=(cv.NoteAdded,)),
    lv.LrSet: Order(rate_rules.order, done=(lv.RateChanged,), failed=(lv.RateOrderAborted,), overtaken_by=_RUN_ENDS),
    rb.Rollback: Order(
        rollback_rules.order,
        done=(rb.RolledBack,),
        failed=(rb.RollbackAborted,),
        overtaken_by=(cv.StopRequested, rv.RunFrozen, *_RUN_ENDS),
        told=rollback_answer,
    ),
    # Done when its consequence is done. Raising it is the end only if nothing follows.
    hv.RaiseEmergency: Order(
        emergency_rules.order,
        done=(hv.EmergencyRaised, rb.RolledBack),
        failed=(rb.RollbackAborted, rv.RunFrozen),
        overtaken_by=(cv.StopRequested, rv.RunFrozen, *_RUN_ENDS),
    ),
    # The trainer gets it at once, and the next trainer with its order to train.
    qv.QuarantineAdd: Order(quarantine_rules.order_to_add, done=(qv.QuarantineAdded,)),
    qv.QuarantineRemove: Order(quarantine_rules.order_to_remove, done=(qv.QuarantineRemoved,)),
    sd.SeedGerminate: _seed_order(seed_rules.order_to_germinate),
    sd.SeedAdvance: _seed_order(seed_rules.order_to_advance),
    sd.SeedCull: _seed_order(seed_rules.order_to_cull),
    pr.PruneAnalyze: Order(
        prune_rules.order_to_analyze,
        done=(pr.PruneAnalyzed,),
        failed=(pr.PruneCycleFailed, pr.PruneCycleCancelled),
        told=sentence,
    ),
    pr.PruneApply: Order(
        prune_rules.order_to_apply, done=(mk.MasksApplied,), failed=(mk.MasksAborted,), overtaken_by=_RUN_ENDS
    ),
    pr.PruneCompact: Order(
        prune_rules.order_to_compact,
        done=(mk.ModelCompacted,),
        failed=(mk.CompactionAborted,),
        overtaken_by=_RUN_ENDS,
        told=sentence,
    ),
    pr.PruneDisable: Order(prune_rules.order_to_disable, done=(pr.PruneDisabled,)),
    pr.PruneEnable: Order(prune_rules.order_to_enable, done=(pr.PruneEnabled,)),
}

# The orders that a command of the strategy may lead to. Operators have the first three, and others instead of the rest.
ADAPTATIONS: Final[Mapping[type[cv.Command], Order]] = {
    **{kind: ORDERS[kind] for kind in (cv.Pause, rb.Rollback, hv.RaiseEmergency)},
    gv.AdaptSeed: Order(strategy_rules.adapt_seed, done=(sd.SeedMoved,), failed=(sd.SeedMoveAborted,)),
    hp.AdjustOptimizer: Order(rate_rules.adjust, done=(hp.HyperparametersChanged, lv.RateChanged)),
    gv.SetBreaker: Order(strategy_rules.set_breaker, done=(gv.BreakerSet,)),
}
