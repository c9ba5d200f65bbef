"""Questions about pruning: the phase, whether a cycle is due, and whether masks or a compaction may be ordered.

Promises: every answer is a function of the folded state. A refusal is a sentence that says what stands in the way, and
what to do. The schedule and operators get the same answers.
"""

from __future__ import annotations

from math import isfinite
from typing import Final, Protocol

from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.health.breaker import BreakerState
from tolariad.core.calc.pruning.analysis import AnalysisRequest, faults_of_choice
from tolariad.core.calc.pruning.files import importance_file
from tolariad.core.calc.pruning.phase import PruningPhase, is_due_since, phase_at
from tolariad.core.calc.pruning.plan import PrunePlan
from tolariad.core.calc.pruning.schedule import budget_at, cap_at, parameters_allowed
from tolariad.core.calc.pruning.verdict import PruningDecision
from tolariad.core.queries import health


class HasPhase(st.HasRun, st.HasProgress, st.HasPruning, Protocol):
    """The slices that the phase follows from."""


class ReadsPruning(
    HasPhase, st.HasCheckpoints, st.HasBoundary, st.HasRollbacks, st.HasHealth, st.HasArchitecture, Protocol
):
    """The slices that orders of pruning depend on."""


_ORDERS: Final = (m.MaskUnits, m.ReleaseMasks, m.CompactModel)
_TRAINS: Final = (st.Phase.RUNNING, st.Phase.RECOVERING, st.Phase.PAUSED)
_OFF: Final = "`prune.enabled` is false in the configuration; set it to true and start the run again"


# -- the phase ---------------------------------------------------------------------------------------------------------


def pruning_breaker(state: HasPhase) -> BreakerState:
    """Return the breaker of pruning. It opens after so many failed cycles in a row, and an operator closes it."""
    plan = state.run.policy.prune
    is_open = plan is not None and state.pruning.failures >= plan.failures
    return BreakerState.OPEN if is_open else BreakerState.CLOSED


def phase_of(state: HasPhase, epoch: int | None = None) -> PruningPhase:
    """Return the phase after `epoch` epochs; None: those that have ended."""
    plan = state.run.policy.prune
    if plan is None:
        return PruningPhase.DISABLED
    ended = state.progress.epoch_finished if epoch is None else epoch
    return phase_at(plan, ended, pruning_breaker(state), state.pruning.override)


def why_disabled(state: HasPhase) -> str:
    """Return why the phase is DISABLED, as a clause; "" if it is another."""
    plan, pruning = state.run.policy.prune, state.pruning
    if plan is None:
        return _OFF
    if phase_of(state) is not PruningPhase.DISABLED:
        return ""
    if not plan.morphogenesis:
        return "`enable_morphogenetic` is false in the configuration: nothing may change the model"
    if pruning_breaker(state) is BreakerState.OPEN:
        failed = f"{pruning.failures} cycles failed in a row, the last because {_clause(pruning.why_failed)}"
        return f"{failed}; `tolaria prune enable` closes the breaker"
    if pruning.override is PruningPhase.DISABLED:
        return "an operator disabled it; `tolaria prune enable` follows the schedule again"
    return f"pruning ends after epoch {plan.last_epoch} (`prune.last_epoch`)"


def _clause(why: str) -> str:
    return why.rstrip(".") or "of an unknown reason"


# -- cycles ------------------------------------------------------------------------------------------------------------


def due_cycle(state: ReadsPruning, entry: st.CatalogueEntry) -> m.PruneCycleBegun | None:
    """Return the cycle that is due at this new checkpoint, or None."""
    plan, epoch = state.run.policy.prune, entry.epoch - 1
    # Most runs prune nothing: this answer comes first.
    if plan is None or state.run.phase is not st.Phase.RUNNING or not entry.is_target:
        return None
    phase = phase_of(state, epoch)
    # Within an epoch too: an epoch may take hours, and the importance of VALIDATION_ONLY is compared with the next one.
    is_due = is_due_since(plan, epoch, state.pruning.last_epoch, phase) or (
        phase is PruningPhase.VALIDATION_ONLY and entry.reason is m.CheckpointReason.INTERVAL
    )
    if not is_due or _is_outdated(state, entry) or why_nothing_starts(state) or why_busy(state):
        return None
    return _begun(state, plan, entry, m.CycleReason.SCHEDULE)


def analysis_to_begin(state: ReadsPruning) -> m.PruneCycleBegun | m.Refusal:
    """Return the event that begins an ordered cycle with the newest checkpoint, or why there is none."""
    plan, entry = state.run.policy.prune, state.checkpoints.newest
    if refused := _refused(state):
        return refused
    if entry is None or plan is None:
        return m.Refusal("NotFound", "there is no checkpoint to analyse; `tolaria checkpoint` takes one")
    if why := why_busy(state):
        return m.Refusal("Refused", why)
    if _is_outdated(state, entry):
        why = f"checkpoint {entry.id} is from before the newest change of masks or model"
        return m.Refusal("Refused", f"{why}; `tolaria checkpoint` takes another")
    return _begun(state, plan, entry, m.CycleReason.ORDERED)


def _is_outdated(state: ReadsPruning, entry: st.CatalogueEntry) -> bool:
    """Return whether a checkpoint was captured before the newest masks acted, or before the model changed its shape.

    It was committed after that. Nothing that an analysis finds there would fit.
    """
    past, changes = state.pruning.past, state.architecture.changes
    if entry.orders is None:
        return False
    return bool(past and entry.orders < past[-1].number) or bool(changes and not st.is_in(changes[-1], entry))


def _begun(state: ReadsPruning, plan: PrunePlan, entry: st.CatalogueEntry, reason: m.CycleReason) -> m.PruneCycleBegun:
    epoch = entry.epoch - 1
    # Before pruning begins, an analysis tries what the first cycle would do.
    scheduled = max(epoch, plan.transition_epoch + 1)
    return m.PruneCycleBegun(
        cycle=state.pruning.cycles + 1,
        checkpoint=entry.id,
        step=entry.step,
        epoch=epoch,
        phase=phase_of(state, epoch),
        share=budget_at(plan, scheduled),
        cap=cap_at(plan, scheduled),
        pruned=state.pruning.pruned,
        pruned_parameters=state.pruning.pruned_parameters,
        reason=reason,
    )


def analysis_of(state: ReadsPruning, opened: st.OpenCycle, entry: st.CatalogueEntry) -> m.AnalyzeCheckpoint:
    """Return the effect of a cycle that was begun."""
    pruning, plan = state.pruning, state.run.policy.prune
    request = AnalysisRequest.of(
        opened,
        manifest=entry.manifest,
        pruned=pruning.pruned_parameters,
        taken=pruning.removed_parameters,
        pruned_channels=pruning.pruned,
        masked=pruning.masked,
        removed=pruning.removed,
        avoid=st.avoided(pruning),
        former=pruning.files[-1].file if pruning.files else "",
        output=importance_file(opened.cycle),
    )
    return m.AnalyzeCheckpoint(request=request, limit_s=(plan or PrunePlan()).timeout_s)


def fault_of_analysis(found: m.PruneAnalyzed, opened: st.OpenCycle, pruning: st.Pruning) -> str:
    """Return why a result cannot be used, as a clause; "" if it can."""
    numbers = (found.accuracy, found.accuracy_masked, found.spread, found.correlation, found.stability, found.seconds)
    if not all(one is None or isfinite(one) for one in numbers):
        return "it contains a number that is not finite"
    numbered = {bool(found.units), bool(found.channels), bool(found.pruned_parameters)}
    if len(numbered) > 1 or (found.units and not found.sha256):
        return "its units and their number do not agree"
    if masked := next((name for name, ones in found.units.items() if not _are_live(pruning, name, ones)), None):
        return f"it takes units of {masked} that are masked already"
    allowed = parameters_allowed(opened.share, opened.cap, found.total_parameters, pruning.pruned_parameters)
    return next(faults_of_choice(found.units, found.plan, found.pruned_parameters, allowed, found.decision), "")


def _are_live(pruning: st.Pruning, name: str, units: tuple[int, ...]) -> bool:
    return all(set(units).isdisjoint(one.units.get(name, ())) for one in pruning.sets)


# -- masks and compaction ----------------------------------------------------------------------------------------------


def masks_to_order(state: ReadsPruning, cycle: int = 0) -> m.OrderGiven | m.Refusal:
    """Return the event that orders the masks of the newest analysis, or why there is none."""
    plan, found = state.run.policy.prune, state.pruning.found
    if refused := _refused(state):
        return refused
    if found is None or plan is None:
        return m.Refusal("NotFound", "nothing was analysed yet; `tolaria prune analyze` does it")
    if why := _not_maskable(state, found, cycle) or why_busy(state):
        return m.Refusal("Refused", why)
    doubtful = found.decision is PruningDecision.CONDITIONAL_GO
    window = plan.window_steps * (2 if doubtful else 1)
    order = m.MaskUnits.of(found, cause=0, grace_steps=plan.grace_steps, window_steps=window)
    return m.OrderGiven(order=order)


def _not_maskable(state: ReadsPruning, found: st.Found, cycle: int) -> str:
    plan, pruning = state.run.policy.prune, state.pruning
    if cycle not in (0, found.cycle):
        return f"the newest analysis is of cycle {found.cycle}, not {cycle}"
    rejected = pruning.rejection_of(found.sha256)
    if rejected is not None:  # safety: rejected-masks-stay-away
        return f"the masks of cycle {rejected.cycle} were rejected: {_clause(rejected.why)}"
    if found.void:
        return f"the units of cycle {found.cycle} cannot be masked any more: {found.void}"
    if found.decision is PruningDecision.NO_GO:  # safety: no-go-masks-nothing
        return f"the validation of cycle {found.cycle} refused its masks: {' '.join(found.reasons)}"
    if not found.units:
        return f"cycle {found.cycle} found nothing to mask"
    if not found.pruned_parameters:
        return f"an older version analysed cycle {found.cycle} and counted no parameters; analyse a newer checkpoint"
    if plan is not None and phase_of(state) is PruningPhase.VALIDATION_ONLY:
        return f"the run only analyses until epoch {plan.transition_epoch} (`pruning_phase_transition_epoch`)"
    if plan is not None:
        cap = cap_at(plan, state.progress.epoch_finished)
        # The schedule's caps rise, but a rollback may lead to an earlier epoch.
        if found.pruned_parameters > parameters_allowed(1.0, cap, found.total_parameters, pruning.pruned_parameters):
            return f"more than {cap:.0%} of the parameters would be pruned, which is the cap of this epoch"
    return ""


def compaction_to_order(state: ReadsPruning) -> m.OrderGiven | m.Refusal:
    """Return the event that orders the removal of all masked units, or why there is none."""
    pruning = state.pruning
    if state.run.policy.prune is None:
        return m.Refusal("Refused", _OFF)
    if why := why_nothing_starts(state) or why_busy(state):
        return m.Refusal(_error(state), why)
    if not pruning.sets:
        return m.Refusal("Refused", "no unit is masked, so there is nothing to remove")
    waiting = sum(1 for _ in state.boundary.of_kind(m.CompactModel))
    if len(state.architecture.changes) + waiting >= st.CHANGES_MAX:
        return m.Refusal(
            "Refused", f"the model has changed {st.CHANGES_MAX} times, which is the most that a run records"
        )
    return m.OrderGiven(order=m.CompactModel(cycle=pruning.sets[-1].cycle, units=pruning.masked))


# -- reasons -----------------------------------------------------------------------------------------------------------


def _refused(state: ReadsPruning) -> m.Refusal | None:
    """Return why nothing at all can be ordered of pruning, or None."""
    if why := why_disabled(state):
        return m.Refusal("Refused", why)
    if why := why_nothing_starts(state):
        return m.Refusal(_error(state), why)
    return None


def _error(state: ReadsPruning) -> str:
    return "Refused" if state.run.phase in _TRAINS else "WrongPhase"


def why_nothing_starts(state: ReadsPruning) -> str:
    """Return why nothing new may be started, or ""."""
    if state.run.phase not in _TRAINS:
        return f"the run is {state.run.phase.value}; this needs one that trains"
    if state.checkpoints.is_ending or state.rollbacks.open is not None or state.rollbacks.asked is not None:
        return "the run is going back or ending"
    if why := health.why_conservative(state):
        return why
    if state.checkpoints.exhausted or state.disk.low is not None:
        return "the space for checkpoints is used up, so nothing new is started; `tolaria status` shows it"
    return ""


def why_busy(state: ReadsPruning) -> str:
    """Return what of pruning is under way, or "". One thing happens at a time."""
    pruning = state.pruning
    if pruning.open is not None:
        return f"cycle {pruning.open.cycle} is being analysed; its result comes first"
    if any(isinstance(one.order, _ORDERS) for one in state.boundary.waiting):
        return "an order of pruning waits for its step boundary already"
    if pruning.window is not None:
        return f"the masks of cycle {pruning.window.cycle} are being watched, until step {pruning.window.until_step}"
    if len(state.boundary.waiting) >= st.WAITING_MAX:
        return f"{st.WAITING_MAX} orders wait for their boundary already"
    return ""
