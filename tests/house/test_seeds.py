"""Every name of the source documents is mapped to the code that does its work, and that code exists."""

from __future__ import annotations

import importlib
import re

import pytest

from tests.house.tree import ROOT

PAGE = (ROOT / "docs" / "seeds.md").read_text(encoding="utf-8")
ROWS = [line.split("|")[1:3] for line in PAGE.splitlines() if line.startswith("| `")]
TARGETS = sorted({name for _, right in ROWS for name in re.findall(r"`(tolariad(?:\.\w+)+)`", right)})
# Every class that a source document defines or relies on, and the names that other programs were promised.
SOURCES = [
    "Tolaria",
    "TolariaTrainer",
    "TrainingResult",
    "TolariaConfig",
    "OptimConfig",
    "ITrainingOrchestrator",
    "ILRController",
    "EpochResult",
    "ValidationResult",
    "UnifiedLRController",
    "LearningRateCoordinator",
    "GroupConfig",
    "LRPolicy",
    "LRSnapshot",
    "LRIntegrityError",
    "CautiousAdamW",
    "CautiousAdamWConfig",
    "DynamicOptimizerStatePreserver",
    "DynamicOptimizerManager",
    "ParameterMapping",
    "OptimizerRebuildCoordinator",
    "CircuitBreaker",
    "CircuitBreakerState",
    "CheckpointMetadata",
    "TolariaPerformanceTargets",
    "PropertyTests",
    "TrainingTask",
    "EnhancedTrainingLoopManager",
    "FastRollbackCoordinator",
    "DistributedRollbackCoordinator",
    "EmergencyProtocolHandler",
    "CheckpointStorageManager",
    "CheckpointCoordinator",
    "MonotonicTimer",
    "TracedOperations",
    "MemoryBudgetManager",
    "TelemetryCollector",
    "TelemetryMessage",
    "TelemetryPriority",
    "TelemetryPacket",
    "MessagePriority",
    "TolariaMetrics",
    "HealthStatus",
    "MultiSeedGradientAggregator",
    "SeedGradientInfo",
    "SeedLifecycleState",
    "SeedLifecycleStage",
    # Stages under names that Leyline does not have, and what the sources say of one.
    "GRAFTING",
    "STABILIZATION",
    "EVALUATING",
    "FINE_TUNING",
    "FOSSILIZED",
    "SEED_WARMUP",
    "KasminaLayers",
    "SystemStatePacket",
    "SystemStateSerializer",
    "HardwareContext",
    "AdaptationCommand",
    "TamiyoTimeoutError",
    "StructuredPruningPhaseManager",
    "ProgressivePruningSchedule",
    "PruningPhase",
    "PruningMetadata",
    "StructuralPruningRequest",
    "StructuralAnalysisRequest",
    # The subsystems that take part in pruning.
    "Kasmina",
    "Elesh",
    "Emrakul",
    "Urabrask",
    "SeedSlot",
    "Blueprint",
    "Strategy",
]


def found(name: str) -> object:
    """Import a module, or an attribute of one. Raises ImportError or AttributeError."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        return getattr(importlib.import_module(module), attribute)


def test_every_name_of_the_sources_has_one_row():
    """No name is missing or has two rows."""
    named = [name for left, _ in ROWS for name in re.findall(r"`(\w+)`", left)]

    assert sorted(named) == sorted(SOURCES)


@pytest.mark.parametrize("name", TARGETS)
def test_what_does_the_work_can_be_imported(name):
    """If the code is renamed, the page must change."""
    assert found(name) is not None


def test_a_name_that_does_not_exist_is_found():
    """The check can fail, so a clean page has a meaning."""
    with pytest.raises(AttributeError):
        found("tolariad.core.rules.emergency.Nothing")
