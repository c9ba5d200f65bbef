"""The table of orders: for each, the rule that accepts or refuses it, and the events that end it.

docs/contributing.md shows how to add one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core.messages.sentences.rollback import rollback_answer
from tolariad.core.messages.sentences.text import sentence
from tolariad.core.rules import (
    control,
    emergency,
    pruning,
    quarantine,
    rates,
    rollback,
    run_limit,
    seeds,
    stages,
    strategy,
)
from tolariad.core.rules.boundary import Says
from tolariad.core.rules.control import Order

_RUN_ENDS: Final = (m.RunCompleted, m.RunFailed, m.RunStopped)


def _silent(_: m.Event) -> str:
    return ""


def _at_a_boundary(rule: Callable[[Any, Any], Any], told: Callable[[Any], str] = _silent) -> Order:
    """Return an order that is done when the boundary order that it becomes acts."""
    return Order(rule, done=(m.OrderActed,), failed=(m.OrderAborted,), overtaken_by=_RUN_ENDS, told=told)


# What concerns say of their boundary orders that act. Those that are not here act as they were ordered.
ACTS: Final[Mapping[type[m.BoundaryOrder], Says]] = {
    m.SetRate: rates.acts,
    m.BeginStage: stages.acts,
    m.MoveSeed: seeds.acts,
    m.MaskUnits: pruning.masks_act,
    m.ReleaseMasks: pruning.release_acts,
    m.CompactModel: pruning.compaction_acts,
}


ORDERS: Final[Mapping[type[m.Command], Order]] = {
    m.Pause: Order(
        control.pause,
        done=(m.RunPaused,),
        overtaken_by=(m.ResumeRequested, m.StopRequested, m.RunFrozen, *_RUN_ENDS),
    ),
    m.Resume: Order(control.resume, done=(m.RunResumed,), overtaken_by=(m.StopRequested, m.RunFrozen, *_RUN_ENDS)),
    # A stop ends with the end of a stronger one that follows it. A run that completes meanwhile needs no stop.
    m.Stop: Order(
        control.stop,
        done=(m.RunStopped,),
        done_by_any=(m.RunStopped,),
        # A stop may end without its last checkpoint; its answer then gives the reason.
        told=lambda stopped: stopped.why,
        overtaken_by=(m.RunCompleted, m.RunFailed),
    ),
    m.Checkpoint: Order(
        control.checkpoint,
        done=(m.CheckpointCommitted,),
        failed=(m.CheckpointAborted,),
        overtaken_by=_RUN_ENDS,
    ),
    # The trainer gets it at once, and the next trainer with its order to train.
    # The answer does not name the giver of the order, who reads it.
    m.Extend: Order(run_limit.order, done=(m.EndOrdered,), told=lambda end: sentence(replace(end, actor=None))),
    m.Note: Order(control.note, done=(m.NoteAdded,), done_by_any=(m.NoteAdded,)),
    m.AnnounceStage: _at_a_boundary(stages.order),
    m.LrSet: _at_a_boundary(rates.order),
    m.Rollback: Order(
        rollback.order,
        done=(m.RolledBack,),
        failed=(m.RollbackAborted,),
        overtaken_by=(m.StopRequested, m.RunFrozen, *_RUN_ENDS),
        told=rollback_answer,
    ),
    # Done when its consequence is done. Raising it is the end only if nothing follows.
    m.RaiseEmergency: Order(
        emergency.order,
        done=(m.EmergencyRaised, m.RolledBack),
        failed=(m.RollbackAborted, m.RunFrozen),
        overtaken_by=(m.StopRequested, m.RunFrozen, *_RUN_ENDS),
    ),
    # The trainer gets it at once, and the next trainer with its order to train.
    m.QuarantineAdd: Order(quarantine.order_to_add, done=(m.QuarantineAdded,)),
    m.QuarantineRemove: Order(quarantine.order_to_remove, done=(m.QuarantineRemoved,)),
    m.SeedGerminate: _at_a_boundary(seeds.order_to_germinate),
    m.SeedAdvance: _at_a_boundary(seeds.order_to_advance),
    m.SeedCull: _at_a_boundary(seeds.order_to_cull),
    m.PruneAnalyze: Order(
        pruning.order_to_analyze,
        done=(m.PruneAnalyzed,),
        failed=(m.PruneCycleFailed, m.PruneCycleCancelled),
        told=sentence,
    ),
    m.PruneApply: _at_a_boundary(pruning.order_to_apply),
    m.PruneCompact: _at_a_boundary(pruning.order_to_compact, told=sentence),
    m.PruneDisable: Order(pruning.order_to_disable, done=(m.PruneDisabled,)),
    m.PruneEnable: Order(pruning.order_to_enable, done=(m.PruneEnabled,)),
}

# The orders that a command of the strategy may lead to. Operators have the first three, and others instead of the rest.
ADAPTATIONS: Final[Mapping[type[m.Command], Order]] = {
    **{kind: ORDERS[kind] for kind in (m.Pause, m.Rollback, m.RaiseEmergency)},
    m.AdaptSeed: Order(strategy.adapt_seed, done=(m.OrderActed,), failed=(m.OrderAborted,)),
    m.AdjustOptimizer: Order(rates.adjust, done=(m.OrderActed,)),
    m.SetBreaker: Order(strategy.set_breaker, done=(m.BreakerSet,)),
}
