"""The rules of pruning: cycles from a checkpoint to their result, and orders of masks and compactions on their way.

A cycle: PruneCycleBegun -> the daemon analyses -> PruneAnalyzed -> an order MaskUnits, if the schedule began it and the
verdict allows it. What follows after masks act is in `pruning_window.py`.
"""

from __future__ import annotations

from typing import Final, Protocol

from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.calc.pruning.files import importance_file
from tolariad.core.calc.pruning.phase import PruningPhase
from tolariad.core.decision import Decision
from tolariad.core.engine import At

_DAY_NS: Final = 86_400_000_000_000


class Reads(q.ReadsPruning, st.HasTrainer, Protocol):
    """The slices that the rules of pruning read."""


# -- orders ------------------------------------------------------------------------------------------------------------


def order_to_analyze(state: Reads, _: m.PruneAnalyze) -> m.PruneCycleBegun | m.Refusal:
    """Accept an order to analyse the newest checkpoint, or refuse it."""
    return q.analysis_to_begin(state)


def order_to_apply(state: Reads, command: m.PruneApply) -> m.OrderGiven | m.Refusal:
    """Accept an order to mask what the newest analysis found, or refuse it."""
    return q.masks_to_order(state, command.cycle)


def order_to_compact(state: Reads, _: m.PruneCompact) -> m.OrderGiven | m.Refusal:
    """Accept an order to remove the masked units, or refuse it."""
    return q.compaction_to_order(state)


def order_to_disable(state: Reads, _: m.PruneDisable) -> m.PruneDisabled | m.Refusal:
    """Accept an order to prune nothing any more, or refuse it if nothing is pruned anyway."""
    if state.run.policy.prune is None:
        return m.Refusal("Refused", q.why_disabled(state))
    return m.PruneDisabled()


def order_to_enable(state: Reads, _: m.PruneEnable) -> m.PruneEnabled | m.Refusal:
    """Accept an order to follow the schedule again, or refuse it if the configuration prunes nothing."""
    if state.run.policy.prune is None:
        return m.Refusal("Refused", q.why_disabled(state))
    return m.PruneEnabled()


# -- cycles ------------------------------------------------------------------------------------------------------------


def begin_due(state: Reads, event: m.CheckpointCommitted, _: At[Reads]) -> Decision | None:
    """Begin the cycle that is due at this checkpoint."""
    if state.run.policy.prune is None:
        return None
    entry = next((one for one in state.checkpoints.catalogue if one.id == event.id), None)
    begun = None if entry is None else q.due_cycle(state, entry)
    return None if begun is None else Decision((begun,))


def analyze(state: Reads, event: m.PruneCycleBegun, _: At[Reads]) -> Decision | None:
    """Let the daemon analyse the checkpoint."""
    opened = state.pruning.open
    entry = next((one for one in state.checkpoints.catalogue if one.id == event.checkpoint), None)
    if opened is None or entry is None:
        return None
    return Decision((), (q.analysis_of(state, opened, entry),))


def replied(state: Reads, given: m.AnalysisReply, _: At[Reads]) -> Decision | None:
    """Record the result of the open cycle, or why there is none. Any other answer comes too late.

    The file of a result that is not recorded is removed: no event would ever name it.
    """
    opened = state.pruning.open
    unnamed = () if given.found is None else (m.RemoveImportance(files=(importance_file(given.cycle),)),)
    if opened is None or opened.cycle != given.cycle:  # safety: late-analysis-ignored
        return Decision((), unnamed)
    why = given.why or "the analysis gave no result"
    if given.found is not None:
        if not (fault := q.fault_of_analysis(given.found, opened, state.pruning)):
            return Decision((m.PruneAnalyzed.of(given.found, cycle=opened.cycle).caused_by(opened.cause),))
        why = f"its result cannot be used: {fault}"
    return Decision((m.PruneCycleFailed(cycle=opened.cycle, why=why).caused_by(opened.cause),), unnamed)


def mask_found(state: Reads, event: m.PruneAnalyzed, _: At[Reads]) -> Decision | None:
    """Order the masks that a cycle of the schedule found, if they may be applied.

    Those of a cycle that only analysed are not, even if pruning has begun since: an operator may order them.
    """
    found = state.pruning.found
    if found is None or found.cycle != event.cycle or found.reason is not m.CycleReason.SCHEDULE:
        return None
    if found.phase is not PruningPhase.ACTIVE_PRUNING:
        return None
    ordered = q.masks_to_order(state, event.cycle)
    return None if isinstance(ordered, m.Refusal) else Decision((ordered,))


_CANCELLED_BY: Final[dict[type, str]] = {
    m.StopRequested: "the run stops",
    m.RunCompleted: "the run is complete",
    m.RunFailed: "the run failed",
    m.RunFrozen: "the run halted",
    # Else it might fail for want of space, which is no fault of its masks.
    m.DiskLow: "the space on the disk is low",
    m.RollbackBegun: "the run goes back",
    m.PruneDisabled: "an operator disabled pruning",
    m.Opened: "the daemon ended",
}


def cancel(
    state: Reads,
    event: m.StopRequested
    | m.RunCompleted
    | m.RunFailed
    | m.RunFrozen
    | m.DiskLow
    | m.RollbackBegun
    | m.PruneDisabled
    | m.Opened,
    _: At[Reads],
) -> Decision | None:
    """Give up the open cycle: its result is not needed any more. The next checkpoint may begin it again."""
    opened = state.pruning.open
    if opened is None:
        return None
    end = m.PruneCycleCancelled(cycle=opened.cycle, why=_CANCELLED_BY[type(event)]).caused_by(opened.cause)
    if isinstance(event, m.Opened):
        return Decision((end,))  # the analysis ended with its daemon
    return Decision((end,), (m.CancelAnalysis(cycle=opened.cycle),))


def open_breaker(
    state: Reads,
    _: m.PruneAnalyzed | m.PruneCycleFailed | m.OrderAborted | m.MaskSetRejected,
    at: At[Reads],
) -> Decision | None:
    """Stop pruning after so many failed cycles in a row."""
    plan, failures = state.run.policy.prune, state.pruning.failures
    if plan is None or not at.was.pruning.failures < plan.failures <= failures:
        return None
    return Decision((m.PruneBreakerOpened(failures=failures, why=state.pruning.why_failed),))


# -- masks and compaction ----------------------------------------------------------------------------------------------


def masks_act(state: Reads, order: m.MaskUnits, report: m.BoundaryOrderReport) -> m.Acts:
    """Return the masks with the figures by which they will be judged."""
    newest = state.checkpoints.newest
    accuracy, loss = (state.progress.metrics.get(name) for name in ("accuracy", "loss"))
    masking = m.Masking.of(
        report,
        pinned=newest.id if newest is not None else "",
        accuracy_before=1.0 if accuracy is None and loss is not None else accuracy,
        loss_before=loss if accuracy is None else None,
    )
    return m.Acts(order, masking)


def release_acts(_: Reads, order: m.ReleaseMasks, report: m.BoundaryOrderReport) -> m.Acts:
    """Return the release with the number of parameters that are free again."""
    return m.Acts(order, m.MasksLifted.of(report))


def compaction_acts(state: Reads, order: m.CompactModel, report: m.BoundaryOrderReport) -> m.Acts | m.ReportRefused:
    """Return the compaction with what was removed and measured."""
    if not isinstance(report, m.ModelCompactedReport):
        return state.trainer.refused(f"a compaction was reported without its measurements (order {report.order})")
    removed = sum(one.channels for one in state.pruning.sets)
    return m.Acts(m.CompactModel.of(order, report), m.Compaction.of(report, channels=removed))


def leave(state: Reads, _: m.RolledBack, __: At[Reads]) -> Decision | None:
    """End masks that did not act before a rollback: the branch that was analysed is left. The trainer drops them too.

    A release and a compaction still act: the trainer refuses them if other masks are in force than they name.
    """
    left = state.boundary.of_kind(m.MaskUnits)
    ends = tuple(
        m.OrderAborted(order=order, why="the run went back before they acted").caused_by(cause) for cause, order in left
    )
    return Decision(ends) if ends else None


# -- files -------------------------------------------------------------------------------------------------------------


def sweep_importance(state: Reads, _: m.Opened, __: At[Reads]) -> Decision | None:
    """Remove files of importance that the journal does not name: a killed daemon leaves them."""
    if not state.pruning.cycles:
        return None
    kept = tuple(one.file for one in state.pruning.files)
    return Decision((), (m.SweepImportance(kept=kept, highest=state.pruning.cycles),))


def retain_importance(
    state: Reads, _: m.Opened | m.Reconfigured | m.CheckpointCommitted, at: At[Reads]
) -> Decision | None:
    """Remove files with importance that are too old, or for which the quota has no room. The newest stays."""
    files = state.pruning.files
    if not files:
        return None
    policy, gone = state.run.policy, dict[str, tuple[st.ImportanceFile, str]]()
    room = policy.quota - q.used_bytes(state.checkpoints) - sum(one.size for one in files)
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
        m.ImportanceRemoved(cycle=one.cycle, file=one.file, why=why, size=one.size) for one, why in gone.values()
    )
    return Decision(events, (m.RemoveImportance(files=tuple(gone)),))
