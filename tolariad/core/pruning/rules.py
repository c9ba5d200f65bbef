"""The rules of pruning: cycles from a checkpoint to their result, and orders of masks and compactions on their way.

A cycle: PruneCycleBegun -> the daemon analyses -> PruneAnalyzed -> MasksOrdered, if the schedule began it and the
verdict allows it. What follows after masks act is in `window_rules.py`.
"""

from __future__ import annotations

from typing import Final, Protocol

from tolariad.core.base import Event, Refusal
from tolariad.core.boundary import words as bw
from tolariad.core.checkpoints import words as ck
from tolariad.core.checkpoints.ask import used_bytes
from tolariad.core.control import words as cv
from tolariad.core.decision import Decision
from tolariad.core.engine import At
from tolariad.core.inputs import AnalysisReply, Opened, Reconfigured
from tolariad.core.pruning import ask
from tolariad.core.pruning import mask_words as mk
from tolariad.core.pruning import words as pr
from tolariad.core.pruning.parts_slice import ImportanceFile
from tolariad.core.pruning.phase import PruningPhase
from tolariad.core.rollback import words as rb
from tolariad.core.run import words as rv
from tolariad.core.trainer.slice import HasTrainer

_DAY_NS: Final = 86_400_000_000_000


class Reads(ask.ReadsPruning, HasTrainer, Protocol):
    """The slices that the rules of pruning read."""


# -- orders ------------------------------------------------------------------------------------------------------------


def order_to_analyze(state: Reads, _: pr.PruneAnalyze) -> pr.PruneCycleBegun | Refusal:
    """Accept an order to analyse the newest checkpoint, or refuse it."""
    return ask.analysis_to_begin(state)


def order_to_apply(state: Reads, command: pr.PruneApply) -> mk.MasksOrdered | Refusal:
    """Accept an order to mask what the newest analysis found, or refuse it."""
    return ask.masks_to_order(state, command.cycle)


def order_to_compact(state: Reads, _: pr.PruneCompact) -> mk.CompactionOrdered | Refusal:
    """Accept an order to remove the masked units, or refuse it."""
    return ask.compaction_to_order(state)


def order_to_disable(state: Reads, _: pr.PruneDisable) -> pr.PruneDisabled | Refusal:
    """Accept an order to prune nothing any more, or refuse it if nothing is pruned anyway."""
    if state.run.policy.prune is None:
        return Refusal("Refused", ask.why_disabled(state))
    return pr.PruneDisabled()


def order_to_enable(state: Reads, _: pr.PruneEnable) -> pr.PruneEnabled | Refusal:
    """Accept an order to follow the schedule again, or refuse it if the configuration prunes nothing."""
    if state.run.policy.prune is None:
        return Refusal("Refused", ask.why_disabled(state))
    return pr.PruneEnabled()


# -- cycles ------------------------------------------------------------------------------------------------------------


def begin_due(state: Reads, event: ck.CheckpointCommitted, _: At[Reads]) -> Decision | None:
    """Begin the cycle that is due at this checkpoint."""
    if state.run.policy.prune is None:
        return None
    entry = next((one for one in state.checkpoints.catalogue if one.id == event.id), None)
    begun = None if entry is None else ask.due_cycle(state, entry)
    return None if begun is None else Decision((begun,))


def analyze(state: Reads, event: pr.PruneCycleBegun, _: At[Reads]) -> Decision | None:
    """Let the daemon analyse the checkpoint."""
    opened = state.pruning.open
    entry = next((one for one in state.checkpoints.catalogue if one.id == event.checkpoint), None)
    if opened is None or entry is None:
        return None
    return Decision((), (ask.analysis_of(state, opened, entry),))


def replied(state: Reads, given: AnalysisReply, _: At[Reads]) -> Decision | None:
    """Record the result of the open cycle, or why there is none. Any other answer comes too late.

    The file of a result that is not recorded is removed: no event would ever name it.
    """
    opened = state.pruning.open
    unnamed = () if given.found is None else (pr.RemoveImportance(files=(ask.importance_file(given.cycle),)),)
    if opened is None or opened.cycle != given.cycle:  # safety: late-analysis-ignored
        return Decision((), unnamed)
    why = given.why or "the analysis gave no result"
    if given.found is not None:
        if not (fault := ask.fault_of_analysis(given.found, opened, state.pruning)):
            return Decision((pr.PruneAnalyzed.of(given.found, cycle=opened.cycle).caused_by(opened.cause),))
        why = f"its result cannot be used: {fault}"
    return Decision((pr.PruneCycleFailed(cycle=opened.cycle, why=why).caused_by(opened.cause),), unnamed)


def mask_found(state: Reads, event: pr.PruneAnalyzed, _: At[Reads]) -> Decision | None:
    """Order the masks that a cycle of the schedule found, if they may be applied.

    Those of a cycle that only analysed are not, even if pruning has begun since: an operator may order them.
    """
    found = state.pruning.found
    if found is None or found.cycle != event.cycle or found.reason is not pr.CycleReason.SCHEDULE:
        return None
    if found.phase is not PruningPhase.ACTIVE_PRUNING:
        return None
    ordered = ask.masks_to_order(state, event.cycle)
    return None if isinstance(ordered, Refusal) else Decision((ordered,))


_CANCELLED_BY: Final[dict[type, str]] = {
    cv.StopRequested: "the run stops",
    rv.RunCompleted: "the run is complete",
    rv.RunFailed: "the run failed",
    rv.RunFrozen: "the run halted",
    # Else it might fail for want of space, which is no fault of its masks.
    rv.DiskLow: "the space on the disk is low",
    rb.RollbackBegun: "the run goes back",
    pr.PruneDisabled: "an operator disabled pruning",
    Opened: "the daemon ended",
}


def cancel(
    state: Reads,
    event: cv.StopRequested
    | rv.RunCompleted
    | rv.RunFailed
    | rv.RunFrozen
    | rv.DiskLow
    | rb.RollbackBegun
    | pr.PruneDisabled
    | Opened,
    _: At[Reads],
) -> Decision | None:
    """Give up the open cycle: its result is not needed any more. The next checkpoint may begin it again."""
    opened = state.pruning.open
    if opened is None:
        return None
    end = pr.PruneCycleCancelled(cycle=opened.cycle, why=_CANCELLED_BY[type(event)]).caused_by(opened.cause)
    if isinstance(event, Opened):
        # The analysis ended with its daemon. It may have written its file before that.
        return Decision((end,), (pr.RemoveImportance(files=(ask.importance_file(opened.cycle),)),))
    return Decision((end,), (pr.CancelAnalysis(cycle=opened.cycle),))


def open_breaker(
    state: Reads,
    _: pr.PruneAnalyzed | pr.PruneCycleFailed | mk.MasksAborted | mk.MaskSetRejected,
    at: At[Reads],
) -> Decision | None:
    """Stop pruning after so many failed cycles in a row."""
    plan, failures = state.run.policy.prune, state.pruning.failures
    if plan is None or not at.was.pruning.failures < plan.failures <= failures:
        return None
    return Decision((pr.PruneBreakerOpened(failures=failures, why=state.pruning.why_failed),))


# -- masks and compaction ----------------------------------------------------------------------------------------------


def acted(state: Reads, report: bw.BoundaryOrderReport, _: At[Reads]) -> Decision | None:
    """Record that an order of pruning acts, or that it was refused. An order that has ended is skipped."""
    waiting = next((one for one in state.boundary.waiting if one.cause.seq == report.order), None)
    if waiting is None:
        return None
    match waiting.order:
        case mk.MaskUnits() as order:
            found = _masked(state, order, report)
        case mk.ReleaseMasks() as order:
            found = _released(state, order, report)
        case mk.CompactModel() as order:
            found = _compacted(state, order, report)
        case _:
            return None
    return Decision((found.caused_by(waiting.cause),))


def _masked(state: Reads, order: mk.MaskUnits, report: bw.BoundaryOrderReport) -> Event:
    if report.refused:
        return mk.MasksAborted.of(order, why=report.refused)
    newest, giver = state.checkpoints.newest, state.pruning.giver(report.order)
    accuracy, loss = (state.progress.metrics.get(name) for name in ("accuracy", "loss"))
    return mk.MasksApplied.of(
        order,
        report,
        state.pruning.ordered,
        number=state.boundary.acted + 1,
        pinned=newest.id if newest is not None else "",
        accuracy_before=1.0 if accuracy is None and loss is not None else accuracy,
        loss_before=loss if accuracy is None else None,
        by=giver.by,
        reason=giver.reason,
    )


def _released(state: Reads, order: mk.ReleaseMasks, report: bw.BoundaryOrderReport) -> Event:
    if report.refused:
        return mk.MasksReleaseAborted.of(order, why=report.refused)
    return mk.MasksReleased.of(order, report, number=state.boundary.acted + 1)


def _compacted(state: Reads, order: mk.CompactModel, report: bw.BoundaryOrderReport) -> Event:
    if report.refused:
        return mk.CompactionAborted.of(order, why=report.refused)
    if not isinstance(report, mk.ModelCompactedReport):
        return state.trainer.refused(f"a compaction was reported without its measurements (order {report.order})")
    giver = state.pruning.giver(report.order)
    return mk.ModelCompacted.of(
        order,
        report,
        number=state.boundary.acted + 1,
        channels=sum(one.channels for one in state.pruning.sets),
        by=giver.by,
        reason=giver.reason,
    )


def leave(state: Reads, _: rb.RolledBack, __: At[Reads]) -> Decision | None:
    """End masks that did not act before a rollback: the branch that was analysed is left. The trainer drops them too.

    A release and a compaction still act: the trainer refuses them if other masks are in force than they name.
    """
    left = state.boundary.of_kind(mk.MaskUnits)
    ends = tuple(
        mk.MasksAborted(cycle=order.cycle, why="the run went back before they acted").caused_by(cause)
        for cause, order in left
    )
    return Decision(ends) if ends else None


# -- files -------------------------------------------------------------------------------------------------------------


def retain_importance(
    state: Reads, _: Opened | Reconfigured | ck.CheckpointCommitted, at: At[Reads]
) -> Decision | None:
    """Remove files with importance that are too old, or for which the quota has no room. The newest stays."""
    files = state.pruning.files
    if not files:
        return None
    policy, gone = state.run.policy, dict[str, tuple[ImportanceFile, str]]()
    room = policy.quota - used_bytes(state.checkpoints) - sum(one.size for one in files)
    for one in files[:-1]:
        if (at.now.wall - one.wall) / _DAY_NS >= policy.importance_days:
            gone[one.file] = one, f"it is older than {policy.importance_days:g} days"
        elif room < 0:
            gone[one.file] = one, f"the quota is {policy.quota} bytes"
        else:
            continue
        room += one.size
    if not gone:
        return None
    events = tuple(
        pr.ImportanceRemoved(cycle=one.cycle, file=one.file, why=why, size=one.size) for one, why in gone.values()
    )
    return Decision(events, (pr.RemoveImportance(files=tuple(gone)),))
