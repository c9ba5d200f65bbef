"""Questions about the health of a run: how well it is, why it should be careful, whether and to where it can go back.

Promises: each answer is a function of the folded state.
"""

from __future__ import annotations

from math import isfinite
from typing import Protocol

from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.detection.rules import NO_LIMIT, Action, Finding, Signal, Verdict, is_watched
from tolariad.core.calc.health.breaker import (
    RATE_VIOLATIONS_MAX,
    SOFT_FACTOR,
    BreakerState,
    breaker_state,
    reason_for_conservative,
)
from tolariad.core.queries import rollback_target as targets
from tolariad.core.queries.rollback import may_begin
from tolariad.core.queries.snapshots import Restorable, restorable


class SkipsKnown(st.HasProgress, st.HasHealth, Protocol):
    """The slices with the quarantine and the place of training."""


class BatchKnown(st.HasRun, st.HasProgress, st.HasTrainer, st.HasHealth, Protocol):
    """The slices that tell which batch a trainer was at."""


class ReadsHealth(
    st.HasRun,
    st.HasProgress,
    st.HasPruning,
    st.HasCheckpoints,
    st.HasTrainer,
    st.HasRollbacks,
    st.HasSnapshots,
    st.HasHealth,
    st.HasInsurance,
    Protocol,
):
    """The slices that the rules of findings, emergencies and quarantine read."""


class HealthKnown(st.HasRun, st.HasProgress, st.HasCheckpoints, st.HasHealth, Protocol):
    """The slices that the status follows from."""


def why_conservative(state: st.HasHealth) -> str:
    """Return why the run may start nothing new, as a clause; "" if it may."""
    if state.stability.conservative:
        return f"the run is in conservative mode and starts nothing new: {state.stability.why}"
    if (pressure := state.overruns.memory) is not None:
        return f"memory is short ({pressure.budget}), so nothing new is started; `tolaria status` shows it"
    return ""


def health_status(state: HealthKnown) -> m.HealthStatus:
    """Return the status that the journal proves at this moment.

    CRITICAL and UNHEALTHY: an emergency of that level, or of MAJOR or SEVERE, is not cleared yet. DEGRADED: the run is
    in conservative mode, or fewer than `snapshots.watch_steps` steps followed the last finding or rollback. UNKNOWN: no
    step was made yet.
    """
    level = state.emergency.level
    if level is m.Level.CRITICAL:
        return m.HealthStatus.CRITICAL
    if level in (m.Level.MAJOR, m.Level.SEVERE):
        return m.HealthStatus.UNHEALTHY
    if state.stability.conservative or _is_on_watch(state):
        return m.HealthStatus.DEGRADED
    return m.HealthStatus.HEALTHY if state.progress.step else m.HealthStatus.UNKNOWN


def _is_on_watch(state: HealthKnown) -> bool:
    since = state.checkpoints.watch_from
    return since > 0 and state.progress.step - since < state.run.policy.snapshot_watch


# -- conservative mode ------------------------------------------------------------------------------------------------


def conservative_mode_entered(state: st.HasHealth, why: str | None) -> tuple[m.ConservativeModeEntered, ...]:
    """Return the event that begins the mode for this reason; nothing if there is none, or if the mode is on."""
    if why is None or state.stability.conservative:
        return ()
    return (m.ConservativeModeEntered(why=why, soft_factor=SOFT_FACTOR),)


def reason_for_mode(state: st.HasHealth, mono: int) -> str | None:
    """Return the reason to be in the mode, or None, whether or not the mode is on."""
    s, overruns = state.stability, state.overruns
    is_open = breaker_state(s.breaker, s.rule, mono / 1e9) is BreakerState.OPEN
    return reason_for_conservative(
        open_breakers=(*(("lr",) if is_open else ()), *overruns.open_breakers(mono)),
        rate_violations=s.violations,
        rate_violations_max=max(RATE_VIOLATIONS_MAX, s.failures),
        slow_boundaries=overruns.slow_boundaries,
    )


# -- emergencies -------------------------------------------------------------------------------------------------------


def emergency_plan(state: ReadsHealth, level: m.Level) -> tuple[m.Follows, Restorable | None]:
    """Return what an emergency of this level leads to in this state, and the target if that is a rollback.

    Its event contains the result (`follows`, `checkpoint`), and `carry_out` does what the event says.
    """
    tier = m.tier_of(level)
    halt_or_record = m.Follows.RECORD if state.run.phase is st.Phase.FROZEN else m.Follows.HALT
    if level is m.Level.CRITICAL:
        return halt_or_record, None
    if tier is None or not may_go_back(state):
        return m.Follows.RECORD, None
    target = targets.automatic_target(state, tier)
    # The run halts if no target is left.
    return (halt_or_record if target is None else m.Follows.ROLLBACK), target


def may_go_back(state: ReadsHealth) -> bool:
    """Return whether the run can go back: it trains, no other rollback is open and it is not ending."""
    return _is_training(state) and may_begin(state)


def _is_training(state: ReadsHealth) -> bool:
    return state.trainer.alive and state.trainer.began and state.progress.rerun is None


def target_for_later(state: ReadsHealth, level: m.Level) -> Restorable | None:
    """Return the target of an operator's emergency that must wait until the trainer trains, or None.

    In a pause without a trainer the rollback begins at once.
    """
    tier, is_taken = m.tier_of(level), state.rollbacks.asked is not None or not may_begin(state)
    if tier is None or is_taken or _is_training(state) or state.run.phase is st.Phase.FROZEN:
        return None
    return targets.automatic_target(state, tier)


# -- findings ----------------------------------------------------------------------------------------------------------


def finding_in_words(found: m.InstabilityDetected) -> str:
    """Return the finding in words."""
    seen = f"{found.finding.value}: {found.signal.value} {found.value:.6g} at step {found.step}"
    if found.limit >= NO_LIMIT:
        # Too early in the run: there is no usual value yet.
        return seen
    return f"{seen} (usual {found.baseline:.6g}, limit {found.limit:.6g})"


def level_of(verdict: Verdict) -> m.Level | None:
    """Return the emergency level of the finding; None if it is only recorded.

    A single batch is no reason for a rollback, unless its values are not finite and its update is made.
    """
    match verdict.action:
        case Action.EMERGENCY:
            return m.Level.SEVERE
        case Action.ROLLBACK:
            return m.Level.MAJOR
        case Action.SKIP if verdict.finding is Finding.NON_FINITE:
            return m.Level.MAJOR
        case _:
            return None


def judged(state: ReadsHealth, found: m.InstabilityDetected, level: m.Level | None) -> m.InstabilityDetected:
    """Return the finding with its consequence: an emergency of `level`, or the autopilot's answer.

    In the safety window of masks the run goes back at once: nothing but the masks is suspected.
    """
    policy, machine = state.run.policy, state.insurance.machine
    found = replace(found, returns=machine.returns)
    if not policy.detect_rollback or not may_go_back(state):
        return found
    if state.pruning.window is not None:
        return found if level is None else replace(found, level=level)
    if not isfinite(found.value) and level is not None:
        return replace(found, level=level, insured=True)
    if not policy.detect_finite:
        return found
    is_confirmed = level is not None if found.signal is Signal.ACCURACY else is_watched(st.verdict_of(found))
    # A loss of either sign has no unit of its own.
    is_signed = found.signal is Signal.LOSS and min(found.value, found.baseline) <= 0.0
    return replace(found, insured=True) if is_confirmed and (not is_signed or found.unit > 0.0) else found


def target_of(state: ReadsHealth, found: m.InstabilityDetected, level: m.Level) -> Restorable | None:
    """Return the target for a finding. After a collapse: from before the first validation that showed it.

    In the safety window of masks: the checkpoint before them, so that they are undone.
    """
    window = state.pruning.window
    before = None if window is None else restorable(state, window.pinned)
    if isinstance(before, st.CatalogueEntry) and before.is_target:
        return before
    until = state.instability.sound_step if found.signal is Signal.ACCURACY else None
    return targets.newest_target(state, m.tier_of(level) or m.Tier.FULL, until)


# -- quarantine --------------------------------------------------------------------------------------------------------


def cause_of(state: SkipsKnown, report: m.StepSkippedReport) -> m.Cause:
    """Return the event of the quarantine entry for which these batches were skipped; 0 if it was removed meanwhile."""
    if report.reason is not m.SkipReason.QUARANTINED:
        return m.Cause(0, 0)
    progress = state.progress
    before = progress.batch if report.epoch == progress.epoch else 0
    for one in state.quarantine.entries:
        held = one.batches
        if held is not None and held.epoch == report.epoch and held.first <= report.batch and before < held.last:
            return m.Cause(one.since, one.root)
    return m.Cause(0, 0)


def batch_of_death(state: BatchKnown) -> m.Batches | None:
    """Return the batch that the trainer is at, if `on_death: skip_batch` lets it be skipped when the trainer dies."""
    progress = state.progress
    # A batch of a validation is not one of training.
    is_training = state.trainer.began and progress.rerun is None and progress.validating is None
    if not state.run.policy.skip_batch_on_death or not is_training:
        return None
    is_next = progress.epoch_finished >= progress.epoch
    epoch, batch = (progress.epoch + 1, 1) if is_next else (progress.epoch, progress.batch + 1)
    return m.Batches(max(1, epoch), batch, batch)


def would_repeat(state: BatchKnown) -> st.KnownException | None:
    """Return the exception of a dying trainer if a restart would only raise it again, else None.

    It was raised for the second time, and its batch cannot be skipped, or skipping did not help.
    """
    is_skipped = batch_of_death(state) is not None and state.trainer.cured < st.CURED_MAX
    return None if is_skipped else state.trainer.repeated
