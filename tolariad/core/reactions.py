"""The table of reactions: one row of rules for every input, report and event that has consequences.

Read a row from top to bottom: the rules run in this order, and each sees every consequence of those above it
(core.engine). Most neighbours may be exchanged. tests/core/reactions/test_order.py lists those that may not, with the
reason. `makes` is every event type that the row's rules may record; docs/reactions.md is generated from it.
"""

from __future__ import annotations

from typing import Final

from tolariad.core import inputs as given
from tolariad.core.architecture import rules as architecture_rules
from tolariad.core.architecture import words as ar
from tolariad.core.boundary import rules as boundary_rules
from tolariad.core.boundary import words as bw
from tolariad.core.checkpoints import rules as checkpoint_rules
from tolariad.core.checkpoints import words as ck
from tolariad.core.control import rules as control_rules
from tolariad.core.control import words as cv
from tolariad.core.control.slice import ACCEPTING
from tolariad.core.engine import Engine, Row, on
from tolariad.core.health import budget_rules, detection_rules, emergency_rules, quarantine_rules
from tolariad.core.health import budget_words as bv
from tolariad.core.health import quarantine_words as qv
from tolariad.core.health import words as hv
from tolariad.core.health.reactions import EMERGENCY, HEALTH
from tolariad.core.orders import ORDERS
from tolariad.core.pruning import mask_words as mk
from tolariad.core.pruning import rules as prune_rules
from tolariad.core.pruning import window_rules
from tolariad.core.pruning import words as pr
from tolariad.core.pruning.reactions import PRUNE_APPLIED, PRUNING
from tolariad.core.rates import rules as rate_rules
from tolariad.core.rates import words as lv
from tolariad.core.rollback import rules as rollback_rules
from tolariad.core.rollback import words as rb
from tolariad.core.run import limit_rules
from tolariad.core.run import rules as run_rules
from tolariad.core.run import words as rv
from tolariad.core.seeds import rules as seed_rules
from tolariad.core.seeds import words as sd
from tolariad.core.snapshots import rules as snapshot_rules
from tolariad.core.snapshots import words as sn
from tolariad.core.state import RunState, apply
from tolariad.core.steps import rules as step_rules
from tolariad.core.steps import words as sv
from tolariad.core.strategy import rules as strategy_rules
from tolariad.core.strategy import words as gv
from tolariad.core.strategy.reactions import STRATEGY, STRATEGY_APPLIED
from tolariad.core.trainer import rules as trainer_rules
from tolariad.core.trainer import words as tv

# The facts of a start: a new run, the daemon, its configuration, a repaired journal.
_FACTS: Final = (rv.JournalRecovered, rv.GapRecorded, rv.RunStarted, rv.DaemonStarted, rv.ConfigChanged)
# The ends of all operations that a trainer had open when it was gone.
_ENDS: Final = (
    gv.StrategyTimedOut,
    ck.CheckpointAborted,
    sn.SnapshotAborted,
    sv.ValidationAborted,
    ck.RerunAborted,
    rb.RollbackEscalated,
    rb.RolledBack,
    rb.RollbackAborted,
)
_UNUSABLE: Final = (sn.SnapshotRejected, ck.CheckpointUnfit, ck.CheckpointRejected)
_RETAINED: Final = (ck.CheckpointDeletionBegun, ck.StorageExhausted, ck.StorageRelieved)
_PRUNING_ENDS: Final = (pr.PruneCycleCancelled, pr.ImportanceRemoved)
_MOVED: Final = (sd.SeedMoved, sd.SeedMoveAborted, cv.ReportRefused)

TABLE: Final[tuple[Row[RunState], ...]] = (
    # -- inputs --------------------------------------------------------------------------------------------------------
    on(
        given.Opened,
        run_rules.opened,
        trainer_rules.went_with_daemon,
        trainer_rules.abort_open,
        rollback_rules.complete_open,
        checkpoint_rules.abort_removals,
        checkpoint_rules.sweep,
        checkpoint_rules.retain,
        prune_rules.cancel,
        prune_rules.retain_importance,
        run_rules.go_on,
        run_rules.disk_measured_at_start,
        run_rules.start_trainer,
        makes=(
            *_FACTS,
            tv.TrainerDied,
            *_ENDS,
            ck.CheckpointDeletionAborted,
            *_RETAINED,
            *_PRUNING_ENDS,
            rv.DiskLow,
            rv.DiskRecovered,
            rv.RunPaused,
            rv.RunResumed,
            rv.RunRetried,
            rv.RunStopped,
            rv.StopAborted,
        ),
    ),
    on(given.CommandReceived, control_rules.received(ORDERS), makes=(*ACCEPTING, cv.CommandRefused)),
    on(given.SignalReceived, control_rules.signalled, makes=(cv.StopRequested,)),
    on(given.TrainerSpawned, trainer_rules.spawned, makes=(tv.TrainerStarted,)),
    on(given.TrainerGone, trainer_rules.gone, makes=(tv.TrainerDied, tv.TrainerEnded)),
    on(given.TrainerSilent, trainer_rules.silent, makes=(tv.TrainerHung,)),
    on(given.TrainerStuck, trainer_rules.stuck, makes=(tv.TrainerUnkillable, rv.RunFrozen)),
    on(given.ReportUnusable, trainer_rules.report_unusable, makes=(cv.ReportRefused,)),
    # The change comes first: it decides what retention keeps.
    on(
        given.Reconfigured,
        run_rules.reconfigured,
        checkpoint_rules.retain,
        prune_rules.retain_importance,
        makes=(rv.ConfigChanged, *_RETAINED, pr.ImportanceRemoved),
    ),
    on(given.CheckpointRemoved, checkpoint_rules.removed, makes=(ck.CheckpointDeleted, ck.CheckpointDeletionAborted)),
    on(given.RingPrepared, snapshot_rules.prepared, makes=(sn.SnapshotRingOpened, sn.FastTierDisabled)),
    on(given.SnapshotDiffers, snapshot_rules.differs, makes=(sn.SnapshotRejected,)),
    on(given.RollbackOverdue, emergency_rules.overdue, makes=(rv.RunFrozen,)),
    on(given.Scheduled, trainer_rules.scheduled, makes=(tv.SchedulingRecorded,)),
    on(given.DiskMeasured, run_rules.disk_measured, makes=(rv.DiskLow, rv.DiskRecovered)),
    on(given.BudgetsReported, budget_rules.reported, makes=(bv.BudgetsMeasured,)),
    # -- reports -------------------------------------------------------------------------------------------------------
    on(
        tv.ReadyReport,
        trainer_rules.ready,
        rate_rules.registered,
        seed_rules.registered,
        makes=(tv.ExecutionContextRecorded, rv.RunFailed, lv.LrGroupsRegistered, sd.SeedSlotsRegistered),
    ),
    on(tv.SetupRefusedReport, trainer_rules.setup_refused, makes=(rv.RunFailed,)),
    on(tv.InexactDataReport, trainer_rules.inexact_data, makes=(tv.InexactDataFound,)),
    on(tv.DataNotedReport, trainer_rules.data_noted, makes=(tv.DataNoted,)),
    on(tv.ExceptionReport, trainer_rules.raised, makes=(tv.ExceptionRaised,)),
    on(sv.StepReport, step_rules.stepped, makes=(sv.StepCompleted, cv.ReportRefused)),
    on(sv.MetricsNamedReport, step_rules.metrics_named, makes=(sv.MetricsNamed, cv.ReportRefused)),
    on(sv.StepSkippedReport, step_rules.skipped, makes=(hv.InstabilityDetected, sv.StepSkipped, cv.ReportRefused)),
    on(sv.EpochStartedReport, step_rules.epoch_started, makes=(sv.EpochStarted,)),
    on(sv.ValidationBegunReport, step_rules.validation_begun, makes=(sv.ValidationBegun,)),
    on(sv.ValidationReport, step_rules.validated, makes=(sv.ValidationFinished,)),
    on(
        sv.EpochReport,
        step_rules.epoch_finished,
        checkpoint_rules.of_epoch_again,
        boundary_rules.go_on_again,
        makes=(sv.EpochFinished, bv.BudgetsMeasured, ck.CheckpointBegun),
    ),
    on(
        sv.TrainingEndedReport,
        limit_rules.after_training,
        checkpoint_rules.last,
        step_rules.training_measured,
        makes=(sv.LimitReached, ck.CheckpointBegun, bv.BudgetsMeasured),
    ),
    on(bv.BudgetsReport, budget_rules.reported, makes=(bv.BudgetsMeasured,)),
    on(
        ck.TrainingStartedReport,
        step_rules.training_started,
        rate_rules.restored,
        makes=(ck.TrainingStarted, ck.RerunBegun, lv.RatesRestored),
    ),
    on(rb.StateCopiedReport, rollback_rules.copied, makes=(rb.StateCopied,)),
    on(ck.RerunReport, step_rules.rerun_finished, makes=(ck.RerunFinished,)),
    on(ck.CheckpointWrittenReport, checkpoint_rules.written, makes=(ck.CheckpointCommitted, cv.ReportRefused)),
    on(ck.CheckpointFailedReport, checkpoint_rules.given_up, makes=(ck.CheckpointAborted, cv.ReportRefused)),
    on(
        ck.CheckpointUnusableReport,
        checkpoint_rules.unusable,
        trainer_rules.train_from_another,
        checkpoint_rules.instead_of_unusable,
        makes=(*_UNUSABLE, rv.RunFailed, ck.CheckpointBegun),
    ),
    on(cv.HeldReport, checkpoint_rules.of_stop_held, run_rules.paused, makes=(ck.CheckpointBegun, rv.RunPaused)),
    # A kind of boundary order adds its rule here; the others find that the order is none of theirs.
    on(
        bw.BoundaryOrderReport,
        *(rate_rules.applied, seed_rules.moved, strategy_rules.hyper_applied, strategy_rules.state_kept),
        prune_rules.acted,
        makes=(lv.RateChanged, lv.RateOrderAborted, *_MOVED, *STRATEGY_APPLIED, *PRUNE_APPLIED),
    ),
    on(sd.SeedMovedReport, seed_rules.moved, makes=_MOVED),
    on(sd.SeedsMeasuredReport, seed_rules.measured, makes=(sd.SeedsMeasured,)),
    on(lv.RatesStandingReport, rate_rules.standing, makes=(lv.RatesRestored,)),
    on(lv.RateViolationReport, rate_rules.violated, makes=(lv.LrViolationDetected,)),
    on(lv.AuditReport, rate_rules.audited, makes=(lv.AuditDiffered,)),
    on(lv.RateGroupsReport, rate_rules.regrouped, makes=(lv.LrGroupsChanged,)),
    on(ar.ArchitectureReport, architecture_rules.changed, makes=(ar.ArchitectureChanged, cv.ReportRefused)),
    on(
        lv.RebuildReport,
        trainer_rules.rebuild,
        makes=(lv.OptimizerRebuildPrepared, lv.OptimizerRebuildCommitted, lv.OptimizerRebuildAborted),
    ),
    on(rb.RollbackHeardReport, rollback_rules.heard, makes=(rb.RollbackHeard,)),
    on(rb.RollbackPreparedReport, rollback_rules.prepared, makes=(rb.RollbackPrepared,)),
    # The trainer is at the target: only now its rates are those of the target.
    on(
        rb.RolledBackReport,
        rollback_rules.finished,
        rate_rules.restored,
        makes=(rb.RolledBack, ck.TrainingStarted, lv.RatesRestored),
    ),
    # The rollback is given up first. Then health decides what follows. If training goes on, it may need a checkpoint.
    on(
        rb.RollbackRefusedReport,
        rollback_rules.refused,
        detection_rules.after_refusal,
        emergency_rules.after_refusal,
        checkpoint_rules.instead_of_refused,
        makes=(rb.RollbackEscalated, rb.RollbackAborted, *_UNUSABLE, *EMERGENCY, ck.CheckpointBegun),
    ),
    on(hv.InstabilityReport, detection_rules.reported, makes=(hv.InstabilityDetected, cv.ReportRefused)),
    on(sn.SnapshotSizeReport, snapshot_rules.sized, makes=(sn.FastTierDisabled,)),
    on(sn.SnapshotTakenReport, snapshot_rules.taken, makes=(sn.SnapshotTaken, sn.SnapshotAborted)),
    on(sn.SnapshotFailedReport, snapshot_rules.given_up, makes=(sn.SnapshotAborted,)),
    # -- steps and epochs ----------------------------------------------------------------------------------------------
    # Every step is offered to these rules. A rule that finds nothing to do costs less than 300 ns.
    on(
        sv.StepCompleted,
        rate_rules.check,
        detection_rules.stalled,
        checkpoint_rules.promoted,
        snapshot_rules.after_step,
        limit_rules.after_step,
        checkpoint_rules.after_interval,
        makes=(
            lv.LrViolationDetected,
            hv.InstabilityDetected,
            ck.CheckpointPromoted,
            sn.SnapshotPromoted,
            sn.SnapshotBegun,
            sv.LimitReached,
            ck.CheckpointBegun,
        ),
    ),
    on(
        sv.EpochFinished,
        rate_rules.plateaus,
        emergency_rules.after_epoch,
        emergency_rules.leave_after_epoch,
        limit_rules.after_epoch,
        quarantine_rules.remove_ended,
        checkpoint_rules.after_epoch,
        snapshot_rules.after_epoch,
        seed_rules.follow,
        # Who is asked at the end of an epoch adds its rule above this line.
        strategy_rules.ask,
        boundary_rules.go_on,
        makes=(
            lv.PlateauReached,
            lv.PlateauUnjudged,
            hv.EmergencyCleared,
            hv.ConservativeModeLeft,
            sv.LimitReached,
            qv.QuarantineRemoved,
            ck.CheckpointBegun,
            sn.SnapshotBegun,
            sd.SeedMoveOrdered,
            gv.StrategyAsked,
        ),
    ),
    on(
        sv.ValidationFinished,
        *(limit_rules.after_validation, window_rules.judge_accuracy, detection_rules.after_validation),
        makes=(sv.ValidationImproved, rv.RunFailed, mk.MaskSetPassed, mk.MaskSetRejected, hv.InstabilityDetected),
    ),
    # -- the trainer ---------------------------------------------------------------------------------------------------
    on(tv.TrainerStarted, trainer_rules.unwanted),
    on(
        tv.ExecutionContextRecorded,
        trainer_rules.train,
        checkpoint_rules.first,
        boundary_rules.send_waiting,
        strategy_rules.ask_again,
        budget_rules.tell_pressure_again,
        run_rules.hold,
        makes=(rv.RunFailed, ck.CheckpointBegun, gv.StrategyAsked),
    ),
    on(
        ck.TrainingStarted,
        rollback_rules.begin_waiting,
        rate_rules.back_off,
        makes=(rb.RollbackBegun, rb.RollbackAborted, rb.RatesBackedOff, lv.RateOrdered),
    ),
    on(
        ck.RerunFinished,
        step_rules.rerun_compared,
        rollback_rules.begin_waiting,
        rate_rules.back_off,
        makes=(ck.RerunDiverged, rb.RollbackBegun, rb.RollbackAborted, rb.RatesBackedOff, lv.RateOrdered),
    ),
    on(ck.RerunDiverged, step_rules.rerun_diverged, makes=(rv.RunFailed,)),
    on(cv.ReportRefused, trainer_rules.untrusted),
    on(
        tv.TrainerDied,
        strategy_rules.overtaken,
        budget_rules.exceeded,
        trainer_rules.abort_open,
        rollback_rules.complete_open,
        trainer_rules.given_up,
        quarantine_rules.after_death,
        trainer_rules.restart,
        run_rules.trainer_is_gone,
        snapshot_rules.verify_next,
        checkpoint_rules.sweep,
        makes=(bv.BudgetExceeded, *_ENDS, rv.RunFailed, qv.QuarantineAdded, rv.RunPaused, rv.RunStopped),
    ),
    on(
        tv.TrainerEnded,
        strategy_rules.overtaken,
        budget_rules.exceeded,
        trainer_rules.abort_open,
        rollback_rules.complete_open,
        run_rules.trainer_is_gone,
        snapshot_rules.verify_next,
        checkpoint_rules.sweep,
        makes=(bv.BudgetExceeded, *_ENDS, rv.RunStopped),
    ),
    # -- the run -------------------------------------------------------------------------------------------------------
    on(cv.PauseRequested, control_rules.paused, makes=(rv.RunPaused,)),
    on(cv.ResumeRequested, control_rules.resumed, makes=(rv.RunResumed,)),
    on(
        cv.StopRequested,
        prune_rules.cancel,
        run_rules.stop_without_trainer,
        checkpoint_rules.of_stop,
        control_rules.stopping,
        makes=(pr.PruneCycleCancelled, rv.RunStopped, ck.CheckpointBegun),
    ),
    on(cv.CheckpointRequested, checkpoint_rules.ordered, makes=(ck.CheckpointBegun,)),
    on(cv.EndOrdered, limit_rules.send_end),
    on(rv.DiskLow, prune_rules.cancel, run_rules.pause_for_disk, makes=(pr.PruneCycleCancelled, rv.RunPaused)),
    on(rv.DiskRecovered, run_rules.go_on_after_disk, makes=(rv.RunResumed,)),
    on(
        rv.RunResumed,
        *(run_rules.resumed, rate_rules.back_off, checkpoint_rules.needed_after_wait),
        makes=(rb.RatesBackedOff, lv.RateOrdered, ck.CheckpointBegun),
    ),
    on(rv.RunFailed, prune_rules.cancel, run_rules.failed, makes=(pr.PruneCycleCancelled,)),
    # -- checkpoints, snapshots, rates, quarantine ---------------------------------------------------------------------
    on(
        ck.CheckpointCommitted,
        budget_rules.exceeded,
        checkpoint_rules.last_is_there,
        checkpoint_rules.stop_is_saved,
        checkpoint_rules.retain,
        prune_rules.retain_importance,
        prune_rules.begin_due,
        makes=(bv.BudgetExceeded, rv.RunCompleted, *_RETAINED, pr.ImportanceRemoved, pr.PruneCycleBegun),
    ),
    on(
        ck.CheckpointAborted,
        checkpoint_rules.needed_one_failed,
        checkpoint_rules.stop_is_saved,
        checkpoint_rules.retain,
        makes=(rv.RunFailed, ck.CheckpointBegun, *_RETAINED),
    ),
    on(sn.SnapshotRingOpened, snapshot_rules.send_ring),
    on(sn.SnapshotRejected, snapshot_rules.verify_next),
    on(lv.RateOrdered, boundary_rules.send),
    on(lv.RatesRestored, rate_rules.back_off, makes=(rb.RatesBackedOff, lv.RateOrdered)),
    on(qv.QuarantineAdded, quarantine_rules.send, seed_rules.follow, makes=(sd.SeedMoveOrdered,)),
    on(qv.QuarantineRemoved, quarantine_rules.send),
    on(sd.SeedMoveOrdered, boundary_rules.send),
    on(sd.SeedMoved, seed_rules.follow, makes=(sd.SeedMoveOrdered,)),
    # -- rollbacks -----------------------------------------------------------------------------------------------------
    on(rb.RollbackRequested, rollback_rules.begin_ordered, makes=(rb.RollbackBegun, rb.RollbackAborted)),
    on(
        rb.RollbackBegun,
        strategy_rules.overtaken,
        prune_rules.cancel,
        checkpoint_rules.beyond_target,
        rollback_rules.prepare,
        strategy_rules.ask_vote,
        rollback_rules.without_trainer,
        boundary_rules.go_on_closed,
        makes=(gv.StrategyTimedOut, pr.PruneCycleCancelled, rb.RolledBack, rv.RunPaused),
    ),
    on(rb.RollbackEscalated, checkpoint_rules.beyond_target, rollback_rules.prepare, strategy_rules.ask_vote),
    on(rb.RollbackHeard, budget_rules.exceeded, makes=(bv.BudgetExceeded,)),
    on(rb.RollbackPrepared, budget_rules.exceeded, makes=(bv.BudgetExceeded,)),
    on(
        rb.RolledBack,
        *(strategy_rules.overtaken, budget_rules.exceeded, seed_rules.follow),
        *(prune_rules.leave, window_rules.release_left, window_rules.compact_due),
        makes=(
            *(gv.StrategyTimedOut, bv.BudgetExceeded, sd.SeedMoveOrdered),
            *(mk.MasksAborted, mk.MasksReleaseOrdered, mk.CompactionOrdered),
        ),
    ),
    *(*HEALTH, *STRATEGY, *PRUNING),
)

ENGINE: Final = Engine(TABLE, apply)
