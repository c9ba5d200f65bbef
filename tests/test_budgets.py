"""One table of budgets: its numbers are those of the source documents, and every default is the table's."""

from __future__ import annotations

import inspect

import pytest

from tolariad.core.calc.health.budgets import BUDGETS
from tolariad.trainer.optim import OptimizerRebuildCoordinator

# The fact sheet's table G, written down once more: limit, unit, kind.
SOURCES = {
    "ms": {
        "soft": {
            "lr_step": 5,
            "lr_integrity": 2,
            "group_addition": 10,
            "parameter_addition": 20,
            "optimizer_rebuild": 100,
            "epoch_boundary": 18,
            "state_assembly": 3.5,
            "strategy_answer": 12,
            "adaptation": 1.5,
            "boundary_check": 1,
            "seed_registry": 1,
            "journal_append": 10,
            "telemetry_batch": 2,
            "telemetry_put": 1,
        },
        "safety": {
            "fast_rollback": 500,
            "fast_prepare": 150,
            "fast_commit": 250,
            "fast_confirm": 100,
            "emergency_critical": 100,
            "emergency_severe": 500,
        },
    },
    "s": {
        "soft": {
            "strategy_deadline": 2,
            "checkpoint": 10,
            "checkpoint_model": 4.2,
            "checkpoint_optimizer": 2.8,
            "checkpoint_strategy": 1.5,
            "checkpoint_seeds": 0.8,
            "checkpoint_write": 0.7,
        },
        "safety": {
            "full_rollback": 12,
            "full_load": 3.5,
            "full_model": 2.8,
            "full_optimizer": 2.2,
            "full_strategy": 1.5,
            "full_seeds": 1.2,
            "full_coordination": 0.8,
            "rollback_deadline": 30,
            "prune_rollback": 30,
            "emergency_major": 2,
            "emergency_minor": 5,
        },
    },
    "us": {"soft": {"serialization": 80}},
    "percent": {
        "soft": {
            "training_degradation": 7.5,
            "memory_overhead": 8.5,
            "importance_overhead": 0.1,
            "memory_model": 40,
            "memory_optimizer": 25,
            "memory_gradients": 15,
            "memory_checkpoints": 8,
            "memory_telemetry": 5,
            "memory_morphogenetic": 5,
            "memory_emergency": 2,
        }
    },
    "GB": {"soft": {"checkpoint_storage": 100}},
    "messages": {"soft": {"telemetry_queue": 10_000}},
}


def test_every_number_is_the_sources():
    """All of them and no other; limits, units, and which ones save a run."""
    told = {
        name: (limit, unit, kind)
        for unit, kinds in SOURCES.items()
        for kind, limits in kinds.items()
        for name, limit in limits.items()
    }

    assert {name: (one.limit, one.unit, one.kind) for name, one in BUDGETS.items()} == {
        name: (pytest.approx(limit), unit, kind) for name, (limit, unit, kind) in told.items()
    }


@pytest.mark.parametrize(
    ("who", "argument", "budget"),
    [
        (OptimizerRebuildCoordinator, "max_rebuild_time_ms", "group_addition"),
    ],
)
def test_a_default_that_a_source_fixes_is_the_tables(who, argument, budget):
    """Its signature says the number, the table says what it means."""
    assert inspect.signature(who).parameters[argument].default == BUDGETS[budget].limit
