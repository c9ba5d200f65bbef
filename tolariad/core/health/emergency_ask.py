"""What an emergency of some level leads to in this state, and whether the run can go back."""

from __future__ import annotations

from typing import Protocol

from tolariad.core.checkpoints.slice import HasCheckpoints
from tolariad.core.health import emergency_words as em
from tolariad.core.rollback import target_ask as targets
from tolariad.core.rollback.ask import may_begin
from tolariad.core.rollback.slice import HasRollbacks
from tolariad.core.run.slice import HasRun, Phase
from tolariad.core.snapshots.ask import Restorable
from tolariad.core.snapshots.slice import HasSnapshots
from tolariad.core.steps.rerun_slice import HasRerun
from tolariad.core.trainer.slice import HasTrainer


class Training(HasTrainer, HasRerun, Protocol):
    """The slices with the trainer and the re-run."""


class MayGoBack(HasRun, HasCheckpoints, HasTrainer, HasRerun, HasRollbacks, Protocol):
    """The slices that a rollback by the run itself depends on."""


class Reads(HasRun, HasCheckpoints, HasTrainer, HasRerun, HasRollbacks, HasSnapshots, Protocol):
    """The same slices, and those with every possible target."""


def plan(state: Reads, level: em.Level) -> tuple[em.Follows, Restorable | None]:
    """Return what an emergency of this level leads to in this state, and the target if that is a rollback.

    Its event contains the result (`follows`, `checkpoint`), and `carry_out` does what the event says.
    """
    tier = em.tier_of(level)
    halt_or_record = em.Follows.RECORD if state.run.phase is Phase.FROZEN else em.Follows.HALT
    if level is em.Level.CRITICAL:
        return halt_or_record, None
    if tier is None or not may_go_back(state):
        return em.Follows.RECORD, None
    target = targets.automatic(state, tier)
    # The run halts if no target is left.
    return (halt_or_record if target is None else em.Follows.ROLLBACK), target


def may_go_back(state: MayGoBack) -> bool:
    """Return whether the run can go back: it trains, no other rollback is open and it is not ending."""
    return _is_training(state) and may_begin(state)


def _is_training(state: Training) -> bool:
    return state.trainer.alive and state.trainer.began and state.rerun.open is None


def target_for_later(state: Reads, level: em.Level) -> Restorable | None:
    """Return the target of an operator's emergency that must wait until the trainer trains, or None.

    In a pause without a trainer the rollback begins at once.
    """
    tier, is_taken = em.tier_of(level), state.rollbacks.asked is not None or not may_begin(state)
    if tier is None or is_taken or _is_training(state) or state.run.phase is Phase.FROZEN:
        return None
    return targets.automatic(state, tier)
