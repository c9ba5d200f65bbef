"""The table of reactions: one row of rules for every input, report and event that has consequences.

Read a row from top to bottom: the rules run in this order, and each sees every consequence of those above it
(core.engine). Most neighbours may be exchanged. tests/core/reactions/test_order.py lists those that may not, with the
reason. `makes` is every event type that the row's rules may record; docs/reactions.md is generated from it.
"""

from __future__ import annotations

from typing import Final, get_args

from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.engine import Engine, Row, on
from tolariad.core.rules import (
    architecture,
    boundary,
    budget,
    checkpoints,
    control,
    emergency,
    health_detection,
    insurance,
    pruning,
    pruning_window,
    quarantine,
    rates,
    rollback,
    run,
    run_limit,
    seeds,
    snapshots,
    stages,
    steps,
    strategy,
    trainer,
)
from tolariad.core.rules.table.orders import ACTS, ORDERS
from tolariad.core.rules.table.reactions_health import EMERGENCY, HEALTH
from tolariad.core.rules.table.reactions_insurance import AUTOPILOT, GOES_ON
from tolariad.core.rules.table.reactions_pruning import PRUNING
from tolariad.core.rules.table.reactions_rollback import ROLLBACK
from tolariad.core.rules.table.reactions_strategy import STRATEGY
from tolariad.core.state.run_state import RunState, apply

# The facts of a start: a new run, the daemon, its configuration, a repaired journal.
_FACTS: Final = (m.JournalRecovered, m.GapRecorded, m.RunStarted, m.DaemonStarted, m.ConfigChanged)
# The ends of all operations that a trainer had open when it was gone.
_ENDS: Final = (
    m.StrategyTimedOut,
    m.CheckpointAborted,
    m.SnapshotAborted,
    m.ValidationAborted,
    m.RerunAborted,
    m.RollbackEscalated,
    m.RolledBack,
    m.RollbackAborted,
)
_UNUSABLE: Final = (m.SnapshotRejected, m.CheckpointUnfit, m.CheckpointRejected)
_RETAINED: Final = (m.CheckpointDeletionBegun, m.StorageExhausted, m.StorageRelieved)
_INSURED: Final = (m.EmergencyRaised, m.ComparisonBegun, m.PinReleased, *GOES_ON)
_KEPT: Final = (m.CheckpointBegun, m.StatePinned, m.PinReleased)
_PRUNING_ENDS: Final = (m.PruneCycleCancelled, m.ImportanceRemoved)
_ANSWERED: Final = boundary.answered(ACTS)
_ENDED: Final = (m.OrderActed, m.OrderAborted, m.ReportRefused)

TABLE: Final[tuple[Row[RunState], ...]] = (
    # -- inputs --------------------------------------------------------------------------------------------------------
    on(
        m.Opened,
        run.opened,
        trainer.went_with_daemon,
        trainer.abort_open,
        rollback.complete_open,
        checkpoints.abort_removals,
        checkpoints.sweep,
        pruning.sweep_importance,
        checkpoints.name_newest,
        checkpoints.retain,
        pruning.cancel,
        pruning.retain_importance,
        run.go_on,
        run.disk_measured_at_start,
        run.start_trainer,
        makes=(
            *_FACTS,
            m.TrainerDied,
            *_ENDS,
            m.CheckpointDeletionAborted,
            *_RETAINED,
            *_PRUNING_ENDS,
            m.DiskLow,
            m.DiskRecovered,
            m.RunPaused,
            m.RunResumed,
            m.RunRetried,
            m.RunStopped,
            m.StopAborted,
        ),
    ),
    on(m.CommandReceived, control.received(ORDERS), makes=(*st.ACCEPTING, m.CommandRefused)),
    on(m.SignalReceived, control.signalled, makes=(m.StopRequested,)),
    on(m.TrainerSpawned, trainer.spawned, makes=(m.TrainerStarted,)),
    on(m.TrainerGone, trainer.gone, makes=(m.TrainerDied, m.TrainerEnded)),
    on(m.TrainerSilent, trainer.silent, makes=(m.TrainerHung,)),
    on(m.TrainerStuck, trainer.stuck, makes=(m.TrainerUnkillable, m.RunFrozen)),
    on(m.ReportUnusable, trainer.report_unusable, makes=(m.ReportRefused,)),
    # The change comes first: it decides what retention keeps.
    on(
        m.Reconfigured,
        run.reconfigured,
        checkpoints.retain,
        pruning.retain_importance,
        makes=(m.ConfigChanged, *_RETAINED, m.ImportanceRemoved),
    ),
    on(m.CheckpointRemoved, checkpoints.removed, makes=(m.CheckpointDeleted, m.CheckpointDeletionAborted)),
    on(m.RingPrepared, snapshots.prepared, makes=(m.SnapshotRingOpened, m.FastTierDisabled)),
    on(m.SnapshotDiffers, snapshots.differs, makes=(m.SnapshotRejected,)),
    on(m.RollbackOverdue, emergency.overdue, makes=(m.RunFrozen,)),
    on(m.Scheduled, trainer.scheduled, makes=(m.SchedulingRecorded,)),
    on(m.SpareNoted, trainer.spare, makes=(m.SpareChanged,)),
    on(m.DiskMeasured, run.disk_measured, makes=(m.DiskLow, m.DiskRecovered)),
    on(m.BudgetsReported, budget.reported, makes=(m.BudgetsMeasured,)),
    # -- reports -------------------------------------------------------------------------------------------------------
    on(
        m.ReadyReport,
        trainer.ready,
        rates.registered,
        seeds.registered,
        makes=(m.ExecutionContextRecorded, m.RunFailed, m.LrGroupsRegistered, m.SeedSlotsRegistered),
    ),
    on(m.SetupRefusedReport, trainer.setup_refused, makes=(m.RunFailed,)),
    on(m.InexactDataReport, trainer.inexact_data, makes=(m.InexactDataFound,)),
    on(m.Told, trainer.told, makes=get_args(m.AnyTold)),
    on(m.ExceptionReport, trainer.raised, makes=(m.ExceptionRaised,)),
    on(m.StepReport, steps.stepped, makes=(m.StepCompleted, m.ReportRefused)),
    on(m.MetricsNamedReport, steps.metrics_named, makes=(m.MetricsNamed, m.ReportRefused)),
    on(m.ParametersDigestedReport, steps.digested, makes=(m.ParametersDigested, m.ReportRefused)),
    on(m.StepSkippedReport, steps.skipped, makes=(m.InstabilityDetected, m.StepSkipped, m.ReportRefused)),
    on(
        m.ValidationReport,
        *(steps.validated, checkpoints.of_validation_again, boundary.go_on_validated_again),
        makes=(m.ValidationFinished, m.CheckpointBegun),
    ),
    on(
        m.EpochReport,
        steps.epoch_finished,
        checkpoints.of_epoch_again,
        boundary.go_on_again,
        makes=(m.EpochFinished, m.BudgetsMeasured, m.CheckpointBegun),
    ),
    on(
        m.TrainingEndedReport,
        run_limit.after_training,
        checkpoints.last,
        steps.training_measured,
        makes=(m.LimitReached, m.CheckpointBegun, m.BudgetsMeasured),
    ),
    on(m.BudgetsReport, budget.reported, makes=(m.BudgetsMeasured,)),
    on(
        m.TrainingStartedReport,
        steps.training_started,
        rates.restored,
        makes=(m.TrainingStarted, m.RerunBegun, m.RatesRestored),
    ),
    on(m.StateCopiedReport, rollback.copied, makes=(m.StateCopied,)),
    on(m.RerunReport, steps.rerun_finished, makes=(m.RerunFinished,)),
    on(m.CheckpointWrittenReport, checkpoints.written, makes=(m.CheckpointCommitted, m.ReportRefused)),
    on(m.CheckpointFailedReport, checkpoints.given_up, makes=(m.CheckpointAborted, m.ReportRefused)),
    on(
        m.CheckpointUnusableReport,
        checkpoints.unusable,
        trainer.train_from_another,
        checkpoints.instead_of_unusable,
        makes=(*_UNUSABLE, m.RunFailed, m.CheckpointBegun),
    ),
    on(m.HeldReport, checkpoints.of_stop_held, run.paused, makes=(m.CheckpointBegun, m.RunPaused)),
    on(m.BoundaryOrderReport, _ANSWERED, makes=_ENDED),
    on(m.SeedMovedReport, _ANSWERED, makes=_ENDED),
    on(m.MasksAppliedReport, _ANSWERED, makes=_ENDED),
    on(m.MasksReleasedReport, _ANSWERED, makes=_ENDED),
    on(m.ModelCompactedReport, _ANSWERED, makes=_ENDED),
    on(m.StageReport, stages.began, makes=(m.OrderActed,)),
    on(m.SeedsMeasuredReport, seeds.measured, makes=(m.SeedsMeasured,)),
    on(m.RatesStandingReport, rates.standing, makes=(m.RatesRestored,)),
    on(m.ArchitectureReport, architecture.changed, makes=(m.ArchitectureChanged, m.ReportRefused)),
    on(
        m.RebuildReport,
        trainer.rebuild,
        makes=(m.OptimizerRebuildPrepared, m.OptimizerRebuildCommitted, m.OptimizerRebuildAborted),
    ),
    on(m.RollbackHeardReport, rollback.heard, makes=(m.RollbackHeard,)),
    on(m.RollbackPreparedReport, rollback.prepared, makes=(m.RollbackPrepared,)),
    # The trainer is at the target: only now its rates are those of the target.
    on(
        m.RolledBackReport,
        rollback.finished,
        rates.restored,
        makes=(m.RolledBack, m.TrainingStarted, m.RatesRestored),
    ),
    # The rollback is given up first. Then health decides what follows. If training goes on, it may need a checkpoint.
    on(
        m.RollbackRefusedReport,
        rollback.refused,
        health_detection.after_refusal,
        emergency.after_refusal,
        checkpoints.instead_of_refused,
        makes=(m.RollbackEscalated, m.RollbackAborted, *_UNUSABLE, *EMERGENCY, m.CheckpointBegun),
    ),
    on(m.InstabilityReport, health_detection.reported, makes=(m.InstabilityDetected, m.ReportRefused)),
    on(m.SnapshotSizeReport, snapshots.sized, makes=(m.FastTierDisabled,)),
    on(m.SnapshotTakenReport, snapshots.taken, makes=(m.SnapshotTaken, m.SnapshotAborted)),
    on(m.SnapshotFailedReport, snapshots.given_up, makes=(m.SnapshotAborted,)),
    # -- steps and epochs ----------------------------------------------------------------------------------------------
    # Every step is offered to these rules. A rule that finds nothing to do costs less than 300 ns.
    on(
        m.StepCompleted,
        rates.check,
        health_detection.stalled,
        checkpoints.promoted,
        snapshots.after_step,
        insurance.after_step,
        run_limit.after_step,
        checkpoints.after_interval,
        makes=(
            m.LrViolationDetected,
            m.InstabilityDetected,
            m.CheckpointPromoted,
            m.SnapshotPromoted,
            m.SnapshotBegun,
            m.ComparisonBegun,
            m.PinReleased,
            m.LimitReached,
            m.RunFailed,
            m.CheckpointBegun,
        ),
    ),
    on(
        m.EpochFinished,
        rates.plateaus,
        emergency.after_epoch,
        emergency.leave_after_epoch,
        run_limit.after_epoch,
        quarantine.remove_ended,
        checkpoints.after_epoch,
        snapshots.after_epoch,
        seeds.follow,
        # Who is asked at the end of an epoch adds its rule above this line.
        strategy.ask,
        boundary.go_on,
        makes=(
            m.PlateauReached,
            m.PlateauUnjudged,
            m.EmergencyCleared,
            m.ConservativeModeLeft,
            m.LimitReached,
            m.QuarantineRemoved,
            m.CheckpointBegun,
            m.SnapshotBegun,
            m.OrderGiven,
            m.StrategyAsked,
        ),
    ),
    # Within an epoch the best one's Branch is saved with ValidationImproved, after all that changes the Branch.
    on(
        m.ValidationFinished,
        *(run_limit.after_validation, pruning_window.judge_accuracy, health_detection.after_validation),
        *(rates.plateaus_within, run_limit.after_validation_within),
        *(checkpoints.after_validation, boundary.go_on_validated),
        makes=(
            m.PlateauReached,
            m.ValidationImproved,
            m.LimitReached,
            m.RunFailed,
            m.MaskSetPassed,
            m.MaskSetRejected,
            m.InstabilityDetected,
            m.CheckpointBegun,
        ),
    ),
    # -- the trainer ---------------------------------------------------------------------------------------------------
    on(m.TrainerStarted, trainer.unwanted),
    on(
        m.ExecutionContextRecorded,
        trainer.train,
        checkpoints.first,
        boundary.send_waiting,
        strategy.ask_again,
        budget.tell_pressure_again,
        insurance.send_again,
        run.hold,
        makes=(m.RunFailed, m.CheckpointBegun, m.StrategyAsked),
    ),
    on(
        m.TrainingStarted,
        *(rollback.begin_waiting, rates.back_off, insurance.keep_again),
        makes=(m.RollbackBegun, m.RollbackAborted, m.RatesBackedOff, m.OrderGiven, *_KEPT),
    ),
    on(
        m.RerunFinished,
        *(steps.rerun_compared, rollback.begin_waiting, rates.back_off, insurance.keep_again),
        makes=(m.RerunDiverged, m.RollbackBegun, m.RollbackAborted, m.RatesBackedOff, m.OrderGiven, *_KEPT),
    ),
    on(m.RerunDiverged, steps.rerun_diverged, makes=(m.RunFailed,)),
    on(m.ReportRefused, trainer.untrusted),
    on(
        m.TrainerDied,
        strategy.overtaken,
        budget.exceeded,
        trainer.abort_open,
        rollback.complete_open,
        trainer.given_up,
        quarantine.after_death,
        trainer.restart,
        run.trainer_is_gone,
        snapshots.verify_next,
        checkpoints.sweep,
        makes=(m.BudgetExceeded, *_ENDS, m.RunFailed, m.QuarantineAdded, m.RunPaused, m.RunStopped),
    ),
    on(
        m.TrainerEnded,
        strategy.overtaken,
        budget.exceeded,
        trainer.abort_open,
        rollback.complete_open,
        run.trainer_is_gone,
        snapshots.verify_next,
        checkpoints.sweep,
        makes=(m.BudgetExceeded, *_ENDS, m.RunStopped),
    ),
    # -- the run -------------------------------------------------------------------------------------------------------
    on(m.PauseRequested, control.paused, makes=(m.RunPaused,)),
    on(m.ResumeRequested, control.resumed, makes=(m.RunResumed,)),
    on(
        m.StopRequested,
        pruning.cancel,
        run.stop_without_trainer,
        checkpoints.of_stop,
        control.stopping,
        makes=(m.PruneCycleCancelled, m.RunStopped, m.CheckpointBegun),
    ),
    on(m.CheckpointRequested, checkpoints.ordered, makes=(m.CheckpointBegun,)),
    on(m.EndOrdered, run_limit.send_end, stages.of_end, makes=(m.OrderGiven,)),
    on(m.ConfigChanged, stages.of_configuration, makes=(m.OrderGiven,)),
    on(
        m.DiskLow,
        *(pruning.cancel, insurance.release_for_disk, run.pause_for_disk),
        makes=(m.PruneCycleCancelled, m.PinReleased, m.CheckpointDeletionBegun, m.RunPaused),
    ),
    on(m.DiskRecovered, run.go_on_after_disk, makes=(m.RunResumed,)),
    on(
        m.RunResumed,
        *(run.resumed, rates.back_off, checkpoints.needed_after_wait),
        makes=(m.RatesBackedOff, m.OrderGiven, m.CheckpointBegun),
    ),
    on(m.RunFailed, pruning.cancel, run.failed, makes=(m.PruneCycleCancelled,)),
    # -- checkpoints, snapshots, rates, quarantine ---------------------------------------------------------------------
    on(
        m.CheckpointCommitted,
        budget.exceeded,
        insurance.written,
        checkpoints.last_is_there,
        checkpoints.stop_is_saved,
        checkpoints.name_newest,
        checkpoints.retain,
        pruning.retain_importance,
        pruning.begin_due,
        makes=(m.BudgetExceeded, *_INSURED, m.RunCompleted, *_RETAINED, m.ImportanceRemoved, m.PruneCycleBegun),
    ),
    on(
        m.CheckpointAborted,
        insurance.not_written,
        checkpoints.needed_one_failed,
        checkpoints.stop_is_saved,
        checkpoints.retain,
        makes=(m.StatePinned, *GOES_ON, m.RunFailed, m.CheckpointBegun, *_RETAINED),
    ),
    on(m.SnapshotRingOpened, snapshots.send_ring),
    on(m.SnapshotRejected, snapshots.verify_next),
    on(m.RatesRestored, rates.back_off, makes=(m.RatesBackedOff, m.OrderGiven)),
    on(m.QuarantineAdded, quarantine.send, seeds.follow, makes=(m.OrderGiven,)),
    on(m.QuarantineRemoved, quarantine.send),
    # -- boundary orders -----------------------------------------------------------------------------------------------
    on(m.OrderGiven, boundary.send),
    on(
        m.OrderActed,
        seeds.follow,
        pruning_window.release_untimely,
        insurance.after_order,
        makes=(m.OrderGiven, m.PinReleased),
    ),
    on(m.OrderAborted, pruning.open_breaker, makes=(m.PruneBreakerOpened,)),
    *(*ROLLBACK, *HEALTH, *AUTOPILOT, *STRATEGY, *PRUNING),
)

ENGINE: Final = Engine(TABLE, apply)
