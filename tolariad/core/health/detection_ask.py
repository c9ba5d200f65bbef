"""How serious a finding is, what it calls for in this state, and the target of its rollback."""

from __future__ import annotations

from math import isfinite
from typing import Protocol

from msgspec.structs import replace

from tolariad.core.checkpoints.slice import HasCheckpoints
from tolariad.core.detection import NO_LIMIT, Action, Finding, Signal, Verdict
from tolariad.core.health import detection_words as det
from tolariad.core.health import emergency_words as em
from tolariad.core.health.detection_slice import HasInstability, is_lost
from tolariad.core.health.emergency_ask import may_go_back
from tolariad.core.rollback import words as rb
from tolariad.core.rollback.slice import HasRollbacks
from tolariad.core.rollback.target_ask import RETURNS_MAX, newest
from tolariad.core.run.slice import HasRun
from tolariad.core.snapshots.ask import Restorable
from tolariad.core.snapshots.slice import HasSnapshots
from tolariad.core.steps.rerun_slice import HasRerun
from tolariad.core.trainer.slice import HasTrainer


class PlacesAndFindings(HasCheckpoints, HasTrainer, HasInstability, HasSnapshots, Protocol):
    """The slices with every possible target, and with the last validation before the accuracy fell."""


class Reads(HasRun, HasCheckpoints, HasTrainer, HasRerun, HasRollbacks, HasInstability, HasSnapshots, Protocol):
    """The same slices, and those that tell whether a rollback may begin."""


def sentence(found: det.InstabilityDetected) -> str:
    """Return the finding in words."""
    seen = f"{found.finding.value}: {found.signal.value} {found.value:.6g} at step {found.step}"
    if found.limit >= NO_LIMIT:
        # Too early in the run: there is no usual value yet.
        return seen
    return f"{seen} (usual {found.baseline:.6g}, limit {found.limit:.6g})"


def level_of(verdict: Verdict) -> em.Level | None:
    """Return the emergency level of the finding; None if it is only recorded.

    A single batch is no reason for a rollback, unless its values are not finite and its update is made.
    """
    match verdict.action:
        case Action.EMERGENCY:
            return em.Level.SEVERE
        case Action.ROLLBACK:
            return em.Level.MAJOR
        case Action.SKIP if verdict.finding is Finding.NON_FINITE:
            return em.Level.MAJOR
        case _:
            return None


def judged(state: Reads, found: det.InstabilityDetected, level: em.Level | None) -> det.InstabilityDetected:
    """Return the finding with its consequence: an emergency of `level`, or to go on although it calls for one."""
    near = state.instability.near(found.step)
    found = replace(found, returns=near.returns if near else 0)
    if level is None or not state.run.policy.detect_rollback or not may_go_back(state):
        return found
    if near is not None and near.granted and isfinite(found.value):
        return replace(found, goes_on=True)
    may_return = target_of(state, found, level) is not None and found.returns < RETURNS_MAX
    acts = may_return or is_lost(near, found) or state.run.policy.detect_halt
    return replace(found, level=level) if acts else replace(found, goes_on=True)


def target_of(state: PlacesAndFindings, found: det.InstabilityDetected, level: em.Level) -> Restorable | None:
    """Return the target for a finding. After a collapse: from before the first validation that showed it."""
    until = state.instability.sound_step if found.signal is Signal.ACCURACY else None
    return newest(state, em.tier_of(level) or rb.Tier.FULL, until)
