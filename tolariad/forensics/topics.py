"""The words that `why` knows: which events each means, and what is said of one that never happened."""

from __future__ import annotations

from typing import Final

_MASKED: Final = "OrderActed:MaskUnits|OrderAborted:MaskUnits"
_COMPACTED: Final = "OrderActed:CompactModel|OrderAborted:CompactModel"
# Topic: event types in order of preference. The answer is the newest event of the first entry that has any. An entry of
# several types joined by `|` means the newest event of any of them. `Type:word` means one with that reason or finding,
# or `resumed` from a checkpoint, or one that tells of several ranks (`ranked`).
TOPICS: Final[dict[str, tuple[str, ...]]] = {
    "pause": ("RunPaused", "PauseRequested"),
    "restart": ("DaemonStarted|TrainingStarted:resumed", "TrainerStarted"),
    "resume": ("RunResumed|RunRetried|TrainingStarted:resumed", "ResumeRequested"),
    "stop": ("RunStopped", "StopRequested"),
    "end": ("LimitReached|EndOrdered", "RunCompleted"),
    "death": ("TrainerDied",),
    "hang": ("TrainerHung",),
    "failure": ("RunFailed",),
    "freeze": ("RunFrozen",),
    "checkpoint": ("CheckpointCommitted", "CheckpointAborted"),
    "rejected": ("CheckpointRejected", "CheckpointUnfit"),
    "rerun": ("RerunFinished", "RerunBegun"),
    "completion": ("RunCompleted",),
    "spike": ("InstabilityDetected", "StepSkipped"),
    "skip": ("StepSkipped",),
    "nan": ("StepSkipped:non_finite", "InstabilityDetected:non_finite"),
    "rollback": ("RolledBack|RollbackAborted", "RollbackBegun"),
    "violation": ("LrViolationDetected",),
    "slow": (),
    "rank": ("TrainerDied:ranked|TrainerHung:ranked", "BudgetsMeasured:ranked"),
    "conservative": ("ConservativeModeEntered", "ConservativeModeLeft"),
    "memory": ("MemoryPressed", "MemoryRelieved"),
    "lr": ("OrderActed:SetRate|PlateauReached", "OrderAborted:SetRate|OrderGiven:SetRate"),
    "seed": ("OrderActed:MoveSeed|OrderAborted:MoveSeed", "OrderGiven:MoveSeed"),
    "prune": (
        f"MaskSetRejected|MaskSetPassed|{_MASKED}|{_COMPACTED}|PruneBreakerOpened",
        "PruneAnalyzed|PruneCycleFailed|PruneCycleCancelled|PruneCycleBegun",
    ),
    "compaction": (_COMPACTED, "OrderGiven:CompactModel"),
    "strategy": ("StrategyAnswered|StrategyTimedOut", "StrategyAsked"),
    "stage": ("OrderActed:BeginStage", "OrderAborted:BeginStage|OrderGiven:BeginStage"),
    "hyperparameters": (
        "OrderActed:SetHyperparameters",
        "OrderAborted:SetHyperparameters|OrderGiven:SetHyperparameters",
    ),
}
# The sentence for a topic of which the run has no event.
NEVER: Final = {
    "pause": "was never paused",
    "resume": "was never resumed",
    "restart": "was never started",
    "stop": "was never stopped, and no stop was ordered",
    "end": "reached no end of its training, and nobody ordered another end",
    "death": "lost no trainer",
    "hang": "had no trainer that hung",
    "failure": "never failed",
    "freeze": "never halted",
    "checkpoint": "has no checkpoint yet",
    "rejected": "had no checkpoint that could not be used",
    "rerun": "had no step to run again",
    "completion": "is not complete",
    "spike": "had no unusual step",
    "skip": "skipped no batch",
    "nan": "had no loss and no gradient that was not finite",
    "rollback": "never went back",
    "violation": "had no learning rate that other code changed",
    "conservative": "was never in conservative mode",
    "memory": "was never short of memory",
    "seed": "moved no seed, and no move was ordered",
    "prune": "pruned nothing, and analysed nothing that could be pruned",
    "compaction": "removed no masked unit from the model, and no compaction was ordered",
    "strategy": "never asked a strategy",
    "slow": "had no lasting rise in the time of its steps above their noise",
    "rank": "had no rank that died, hung, differed from another or was timed",
    "stage": "began no announced stage, and none was ordered",
    "hyperparameters": "changed no value of an optimizer but its rate",
}
# The events that judge masks: a report or a validation causes them.
JUDGE: Final = ("MaskSetPassed", "MaskSetRejected")
# Starts, and the events by which the process before one ended.
STARTS: Final = ("DaemonStarted", "TrainerStarted", "TrainingStarted")
WAYS_TO_END: Final = (
    *("TrainerDied", "TrainerEnded", "TrainerUnkillable"),
    *("RunStopped", "RunFailed", "RunCompleted", "RolledBack"),
)
# The events of an unusual step.
UNUSUAL: Final = ("InstabilityDetected", "StepSkipped")
# The events that end what an event began, without being caused by it.
ENDED_BY: Final = {
    "RunPaused": ("RunResumed", "RunStopped", "RunFailed"),
    "RunFrozen": ("RunResumed", "RunStopped", "RunFailed"),
    "ConservativeModeEntered": ("ConservativeModeLeft",),
    "DiskLow": ("DiskRecovered",),
    "MemoryPressed": ("MemoryRelieved",),
}
