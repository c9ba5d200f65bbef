"""The types of events that a run needs and a person rarely looks for: they are left out of lists unless asked for.

By their names: a command that lists events need not load the types. A type that is not listed, also one of a newer
version, is shown.
"""

from __future__ import annotations

from typing import Final

BOOKKEEPING: Final = frozenset(
    {
        "StepCompleted",
        "MetricsNamed",
        # `diff`, `checkout` and `reexecute` look at them.
        "ParametersDigested",
        "EpochStarted",
        "ValidationBegun",
        "StateCopied",
        "BudgetsMeasured",
        "SchedulingRecorded",
        "SpareChanged",
        "TelemetryDropped",
        # A checkpoint is shown when it is committed, and if it is not.
        "CheckpointBegun",
        "CheckpointPromoted",
        "CheckpointDeletionBegun",
        "CheckpointDeleted",
        "SnapshotRingOpened",
        "SnapshotBegun",
        "SnapshotTaken",
        "SnapshotPromoted",
        "LrGroupsRegistered",
        "OptimizerRebuildPrepared",
        # Of a rollback its order, its begin and its end are shown.
        "RollbackHeard",
        "RollbackPrepared",
        "ComparisonBegun",
        "SeedSlotsRegistered",
        "SeedsMeasured",
        "StrategyAsked",
        "ImportanceRemoved",
        "PruneWatched",
    }
)
