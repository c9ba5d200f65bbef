"""Whether a rollback may begin, the event that begins it, and whether the open one is overdue."""

from __future__ import annotations

from typing import Final, Protocol

from tolariad.core.base import Cause
from tolariad.core.checkpoints.slice import HasCheckpoints
from tolariad.core.health.slice import HasHealth
from tolariad.core.inputs import RollbackOverdue
from tolariad.core.rollback import words as rb
from tolariad.core.rollback.slice import HasRollbacks, OpenRollback, WaitingRollback
from tolariad.core.run.slice import HasRun, Phase
from tolariad.core.snapshots.ask import Restorable
from tolariad.core.steps.slice import HasProgress
from tolariad.core.strategy.words import StrategyVoted

_PHASES: Final = (Phase.RUNNING, Phase.RECOVERING, Phase.PAUSED, Phase.FROZEN)


class MayBegin(HasRun, HasCheckpoints, HasRollbacks, Protocol):
    """The slices with the phase, the other rollback, and the run's last checkpoint."""


class RollbacksAndProgress(HasProgress, HasRollbacks, Protocol):
    """The slices with the next rollback's name, and the place of training."""


class RollbacksAndBudgets(HasRollbacks, HasHealth, Protocol):
    """The slices with the open rollback and its deadline."""


def may_begin(state: MayBegin) -> bool:
    """Return whether a rollback may begin: not if the run has ended or is ending, and not during another one."""
    return state.run.phase in _PHASES and state.rollbacks.open is None and not state.checkpoints.is_ending


def rollback_begun(
    state: RollbacksAndProgress, target: Restorable, why: str, otherwise: rb.RefusalPolicy, cause: Cause | None = None
) -> rb.RollbackBegun:
    """Return the event that begins a rollback to `target`. `cause`: its order, if that is not the event reacted to."""
    tier = rb.Tier.FAST if target.ref.slot is not None else rb.Tier.FULL
    return rollback_begun_as(state, WaitingRollback(target.id, tier, why, cause or Cause(0, 0), target.step, otherwise))


def rollback_begun_as(state: RollbacksAndProgress, asked: WaitingRollback) -> rb.RollbackBegun:
    """Return the event that begins the rollback that was ordered."""
    event = rb.RollbackBegun(
        rollback=state.rollbacks.next_id,
        checkpoint=asked.checkpoint,
        tier=asked.tier,
        from_step=state.progress.step,
        from_branch=state.progress.branch,
        to_step=asked.step,
        why=asked.why,
        otherwise=asked.otherwise,
    )
    return event.caused_by(asked.cause)


def rollback_overdue(state: RollbacksAndBudgets, mono: int) -> RollbackOverdue | None:
    """Return the input that the open rollback exceeded its deadline, or None. All phases of both tiers count together.

    The time is counted from when training was stopped for it.
    """
    opened = state.rollbacks.open
    if opened is None or not opened.heard_mono or mono - opened.heard_mono < rollback_deadline_s(state) * 1e9:
        return None
    return RollbackOverdue(opened.id)


def rollback_deadline_s(state: HasHealth) -> float:
    """Return how many seconds a rollback may take, all phases of both tiers together."""
    return state.overruns.limit_of("rollback_deadline")


def given_up(opened: OpenRollback, report: rb.RollbackRefusedReport | StrategyVoted) -> str:
    """Return why a rollback was given up, as a clause."""
    return f"rollback {opened.id}: {report.file}: {report.why}"
