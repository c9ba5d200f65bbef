"""Whether a rollback may begin, the event that begins one, and whether the one under way takes too long."""

from __future__ import annotations

from typing import Final, Protocol

from tolariad.core.base import Cause
from tolariad.core.checkpoints.slice import HasCheckpoints
from tolariad.core.health.budget_slice import HasOverruns
from tolariad.core.inputs import RollbackOverdue
from tolariad.core.rollback import words as rb
from tolariad.core.rollback.slice import Asked, HasRollbacks, Open
from tolariad.core.run.slice import HasRun, Phase
from tolariad.core.snapshots.ask import Place
from tolariad.core.steps.slice import HasProgress

_PHASES: Final = (Phase.RUNNING, Phase.RECOVERING, Phase.PAUSED, Phase.FROZEN)


class MayBegin(HasRun, HasCheckpoints, HasRollbacks, Protocol):
    """The phase, the other rollback, and the run's last checkpoint."""


class RollbacksAndProgress(HasProgress, HasRollbacks, Protocol):
    """The next rollback's name, and where training stands."""


class RollbacksAndBudgets(HasRollbacks, HasOverruns, Protocol):
    """The rollback under way, and its deadline."""


def may_begin(state: MayBegin) -> bool:
    """May a rollback begin? Not if the run has ended or is ending, and not during another one."""
    return state.run.phase in _PHASES and state.rollbacks.open is None and not state.checkpoints.is_ending


def begun(
    state: RollbacksAndProgress, target: Place, why: str, otherwise: rb.Otherwise, cause: Cause | None = None
) -> rb.RollbackBegun:
    """The event that begins a rollback to `target`. `cause`: its order, if that is not the event reacted to."""
    tier = rb.Tier.FAST if target.ref.slot is not None else rb.Tier.FULL
    return begun_as(state, Asked(target.id, tier, why, cause or Cause(0, 0), target.step, otherwise))


def begun_as(state: RollbacksAndProgress, asked: Asked) -> rb.RollbackBegun:
    """Return the same for an order: `asked` says where to, and why."""
    return rb.RollbackBegun(
        rollback=state.rollbacks.next_id,
        checkpoint=asked.checkpoint,
        tier=asked.tier,
        from_step=state.progress.step,
        from_branch=state.progress.branch,
        to_step=asked.step,
        why=asked.why,
        otherwise=asked.otherwise,
        cause=asked.cause.seq,
        root=asked.cause.root,
    )


def overdue(state: RollbacksAndBudgets, mono: int) -> RollbackOverdue | None:
    """Return the input that the rollback under way has had its time, all phases of both tiers together; None if it has not.

    The time is counted from when training stood still.
    """
    opened = state.rollbacks.open
    if opened is None or not opened.heard_mono or mono - opened.heard_mono < deadline_s(state) * 1e9:
        return None
    return RollbackOverdue(opened.id)


def deadline_s(state: HasOverruns) -> float:
    """Return the seconds that a rollback may take, all phases of both tiers together."""
    return state.overruns.limit_of("rollback_deadline")


def given_up(opened: Open, report: rb.RollbackRefusedReport) -> str:
    """Return why a rollback was given up, as a clause."""
    return f"rollback {opened.id}: {report.file}: {report.why}"
