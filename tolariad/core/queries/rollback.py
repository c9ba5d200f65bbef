"""Whether a rollback may begin, the event that begins it, and whether the open one is overdue."""

from __future__ import annotations

from typing import Final, Protocol

from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.queries.snapshots import Restorable

_PHASES: Final = (st.Phase.RUNNING, st.Phase.RECOVERING, st.Phase.PAUSED, st.Phase.FROZEN)


class MayBegin(st.HasRun, st.HasCheckpoints, st.HasRollbacks, Protocol):
    """The slices with the phase, the other rollback, and the run's last checkpoint."""


class RollbacksAndProgress(st.HasProgress, st.HasRollbacks, Protocol):
    """The slices with the next rollback's name, and the place of training."""


class RollbacksAndBudgets(st.HasRollbacks, st.HasHealth, Protocol):
    """The slices with the open rollback and its deadline."""


def may_begin(state: MayBegin) -> bool:
    """Return whether a rollback may begin: not if the run has ended or is ending, and not during another one."""
    return state.run.phase in _PHASES and state.rollbacks.open is None and not state.checkpoints.is_ending


def rollback_begun(
    state: RollbacksAndProgress, target: Restorable, why: str, otherwise: m.RefusalPolicy, cause: m.Cause | None = None
) -> m.RollbackBegun:
    """Return the event that begins a rollback to `target`. `cause`: its order, if that is not the event reacted to."""
    tier = m.Tier.FAST if target.ref.slot is not None else m.Tier.FULL
    return rollback_begun_as(
        state, st.WaitingRollback(target.id, tier, why, cause or m.Cause(0, 0), target.step, otherwise)
    )


def rollback_begun_as(state: RollbacksAndProgress, asked: st.WaitingRollback) -> m.RollbackBegun:
    """Return the event that begins the rollback that was ordered."""
    event = m.RollbackBegun(
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


def rollback_overdue(state: RollbacksAndBudgets, mono: int) -> m.RollbackOverdue | None:
    """Return the input that the open rollback exceeded its deadline, or None. All phases of both tiers count together.

    The time is counted from when training was stopped for it.
    """
    opened = state.rollbacks.open
    if opened is None or not opened.heard_mono or mono - opened.heard_mono < rollback_deadline_s(state) * 1e9:
        return None
    return m.RollbackOverdue(opened.id)


def rollback_deadline_s(state: st.HasHealth) -> float:
    """Return how many seconds a rollback may take, all phases of both tiers together."""
    return state.overruns.limit_of("rollback_deadline")


def given_up(opened: st.OpenRollback, report: m.RollbackRefusedReport | m.StrategyVoted) -> str:
    """Return why a rollback was given up, as a clause."""
    return f"rollback {opened.id}: {report.file}: {report.why}"
