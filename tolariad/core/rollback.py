"""Rollbacks: slice, apply table, the protocol as a state machine, branches, and which target is meant.

A rollback is PREPARE (every participant says whether it can), COMMIT (they go back), CONFIRM (what they hold was compared).
All must agree; the intent is durable before COMMIT. A trainer or a daemon that dies amid a rollback finishes it by its next
start, which begins at the target: that is as far as anybody can go back. Each rollback opens a branch, and steps that are
not on the living line are never a target and never run again, but stay in the journal.

Invariants: at most one rollback is open; it has exactly one end; the branch's number only grows; a checkpoint behind the
fork, on the branch that was left, is abandoned for ever. It must not know: tensors, files, what the participants are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from tolariad.core import checkpoints as ckpt_rules
from tolariad.core import rates as rate_rules
from tolariad.core import run as run_rules
from tolariad.core.decision import Accepted, Decision, Refusal
from tolariad.core.lines import Fork, Lines
from tolariad.core.run import Phase
from tolariad.core.vocabulary import Actor, Event
from tolariad.core.vocabulary import checkpoints as ck
from tolariad.core.vocabulary import control as cv
from tolariad.core.vocabulary import rollback as rb
from tolariad.core.vocabulary.base import ApplyTable, Cause

if TYPE_CHECKING:
    from tolariad.core.state import RunState

# A target gone back to so often is no good: the next rollback goes further back.
RETURNS_MAX: Final = 2
_RETURNS_KEPT: Final = 64
_PHASES: Final = (Phase.RUNNING, Phase.RECOVERING, Phase.PAUSED, Phase.FROZEN)


class Open(msgspec.Struct, frozen=True):
    """A rollback that has no end yet."""

    id: str
    checkpoint: str
    tier: rb.Tier
    cause: Cause


class Asked(msgspec.Struct, frozen=True):
    """One that waits for the end of a re-run."""

    checkpoint: str
    tier: rb.Tier
    why: str
    cause: Cause


class Rollbacks(msgspec.Struct, frozen=True):
    """Slice of RunState. `returns`: how often each target was gone back to, the latest last."""

    begun: int = 0
    done: int = 0
    open: Open | None = None
    asked: Asked | None = None
    returns: tuple[tuple[str, int], ...] = ()
    lines: Lines = Lines()

    @property
    def target(self) -> str:
        """The checkpoint that was gone back to last; empty where none ever was."""
        return self.returns[-1][0] if self.returns else ""

    @property
    def next_id(self) -> str:
        """The name of the next rollback; never used twice."""
        return f"r{self.begun + 1:04d}"


def _requested(s: Rollbacks, e: rb.RollbackRequested, at: Cause) -> Rollbacks:
    return replace(s, asked=Asked(e.checkpoint, e.tier, e.actor.reason if e.actor else "", at))


def _begun(s: Rollbacks, e: rb.RollbackBegun, at: Cause) -> Rollbacks:
    return replace(s, begun=s.begun + 1, asked=None, open=Open(e.rollback, e.checkpoint, e.tier, at))


def _rolled_back(s: Rollbacks, e: rb.RolledBack, at: Cause) -> Rollbacks:
    returns = dict(s.returns)
    count = returns.pop(e.checkpoint, 0) + 1
    kept = (*returns.items(), (e.checkpoint, count))[-_RETURNS_KEPT:]
    fork = Fork(e.branch, e.parent, e.step, e.epoch, e.batch, at.seq)
    return replace(s, done=s.done + 1, open=None, returns=kept, lines=s.lines.forked(fork))


def _aborted(s: Rollbacks, _: rb.RollbackAborted, __: Cause) -> Rollbacks:
    return replace(s, open=None)


APPLY: Final[ApplyTable] = {
    rb.RollbackRequested: _requested,
    rb.RollbackBegun: _begun,
    rb.RolledBack: _rolled_back,
    rb.RollbackAborted: _aborted,
}


# -- targets -----------------------------------------------------------------------------------------------------------


def usable(state: RunState) -> tuple[ckpt_rules.Entry, ...]:
    """The checkpoints that may be gone back to, the oldest first."""
    return tuple(one for one in state.checkpoints.catalogue if one.is_target)


def find_target(state: RunState, command: rb.Rollback) -> ckpt_rules.Entry | str:
    """The checkpoint that is meant, or a sentence why there is none."""
    targets = usable(state)
    if command.to:
        known = next((one for one in state.checkpoints.catalogue if one.id == command.to), None)
        if known is None:
            return f"there is no checkpoint {command.to!r}; `tolaria checkpoints` lists them"
        if not known.is_target:
            what = "failed its verification" if known.rejected else "lies on a branch that was abandoned"
            what = f"is in quarantine ({known.quarantined})" if known.quarantined else what
            return f"checkpoint {known.id} {what}; `tolaria checkpoints` lists the others"
        return known
    if command.epoch is not None:
        targets = tuple(one for one in targets if (one.epoch, one.batch) <= (command.epoch + 1, 0))
    if command.step is not None:
        targets = tuple(one for one in targets if one.step <= command.step)
    if not targets:
        return "no checkpoint that can be used is as old as that; `tolaria checkpoints` lists them"
    return targets[-1]


def automatic_target(state: RunState) -> ckpt_rules.Entry | None:
    """The newest target that was not gone back to too often already; None where there is none left."""
    returns = dict(state.rollbacks.returns)
    fresh = [one for one in usable(state) if returns.get(one.id, 0) < RETURNS_MAX]
    return fresh[-1] if fresh else None


# -- orders ------------------------------------------------------------------------------------------------------------


def may_begin(state: RunState) -> bool:
    """Neither ended nor ending (the last checkpoint is being written), and no other one under way."""
    ending = any(one.reason is ck.CheckpointReason.END for one in state.checkpoints.open)
    return state.run.phase in _PHASES and state.rollbacks.open is None and not ending


def decide_command(state: RunState, command: rb.Rollback, actor: Actor) -> Decision:
    """An operator's order: recorded, then begun at once, or when the re-run under way is over."""
    phase = state.run.phase
    if not may_begin(state) or state.rollbacks.asked is not None:
        why = f"the run is {phase.value}; a rollback needs one that is running, paused or frozen, and no other rollback"
        return Decision(answer=Refusal(error="WrongPhase", why=why, phase=phase.value))
    target = find_target(state, command)
    if isinstance(target, str):
        return Decision(answer=Refusal(error="NotFound", why=target, phase=phase.value))
    tier = command.tier or rb.Tier.FULL
    asked = rb.RollbackRequested(checkpoint=target.id, tier=tier, id=command.id, actor=actor)
    accepted = Decision((asked,), (), Accepted())
    if state.rerun.open is not None or (state.trainer.alive and not state.trainer.began):
        return accepted
    return accepted + begin(state, target, tier, actor.reason)


def begin(state: RunState, target: ckpt_rules.Entry, tier: rb.Tier, why: str, cause: Cause | None = None) -> Decision:
    """PREPARE. Where no trainer lives, the next one begins at the target, and that is all of it."""
    at = cause or Cause(0, 0)
    begun = rb.RollbackBegun(
        rollback=state.rollbacks.next_id,
        checkpoint=target.id,
        tier=tier,
        from_step=state.progress.step,
        from_branch=state.progress.branch,
        to_step=target.step,
        why=why,
        cause=at.seq,
        root=at.root,
    )
    if state.trainer.alive:
        order = rb.PrepareRollback(rollback=begun.rollback, checkpoint=target.ref, tier=tier)
        return Decision((begun,)) + ckpt_rules.abort_beyond(state, target.step, "a rollback began") + _to_trainer(order)
    finished = Decision((begun, _rolled_back_event(state, begun.rollback, target)))
    if state.run.phase not in (Phase.PAUSED, Phase.FROZEN):
        # The next start is under way already.
        return finished
    if state.run.pause is not None:
        return finished + Decision((run_rules.paused(state, state.run.pause, target.step),))
    return finished + Decision((), (run_rules.spawn(state),))


def _to_trainer(order: rb.PrepareRollback) -> Decision:
    return Decision((), (order,))


def begin_asked(state: RunState) -> Decision:
    """What was ordered during the re-run that is over now."""
    asked = state.rollbacks.asked
    if asked is None or not may_begin(state):
        return Decision()
    target = next((one for one in usable(state) if one.id == asked.checkpoint), None)
    if target is None:
        return Decision()
    return begin(state, target, asked.tier, asked.why, asked.cause)


# -- the protocol ------------------------------------------------------------------------------------------------------


def decide_report(
    state: RunState, report: rb.RollbackPreparedReport | rb.RollbackRefusedReport | rb.RolledBackReport
) -> Decision:
    """The next phase, or the end."""
    opened = state.rollbacks.open
    if opened is None or opened.id != report.rollback:
        return Decision()
    at = opened.cause
    match report:
        case rb.RollbackPreparedReport():
            prepared = rb.RollbackPrepared(
                rollback=opened.id,
                participants=report.participants,
                seconds=report.seconds,
                cause=at.seq,
                root=at.root,
            )
            return Decision((prepared,), (rb.CommitRollback(rollback=opened.id),))
        case rb.RolledBackReport():
            return _finish(state, opened, report)
        case rb.RollbackRefusedReport():
            return _refused(state, opened, report)


def _finish(state: RunState, opened: Open, report: rb.RolledBackReport) -> Decision:
    target = _entry(state, opened.checkpoint)
    if target is None:
        return Decision()
    done = _rolled_back_event(state, opened.id, target, opened.cause, report=report)
    started = ck.TrainingStarted(incarnation=state.trainer.incarnation, step=target.step, checkpoint=target.id)
    decision = Decision((done, started))
    decision += Decision(rate_rules.restored(state, report.rates))
    if state.run.pause is not None:
        return decision + Decision((), (cv.Hold(),))
    return decision


def _refused(state: RunState, opened: Open, report: rb.RollbackRefusedReport) -> Decision:
    """The target is not to be used again; an operator's choice is not replaced by another."""
    rejected = ck.CheckpointRejected(id=opened.checkpoint, file=report.file, why=report.why)
    aborted = rb.RollbackAborted(
        rollback=opened.id,
        why=f"checkpoint {opened.checkpoint} cannot be used: {report.file}: {report.why}",
        cause=opened.cause.seq,
        root=opened.cause.root,
    )
    decision = Decision((aborted, rejected), (rb.AbortRollback(rollback=opened.id),))
    if state.run.pause is not None:
        return decision + Decision((), (cv.Hold(),))
    return decision


def pending(state: RunState) -> tuple[Event, ...]:
    """The trainer is gone amid a rollback: the next one begins at the target, so the rollback is done."""
    opened = state.rollbacks.open
    if opened is None:
        return ()
    target = _entry(state, opened.checkpoint)
    if target is None or not target.is_target:
        why = "its target cannot be used any more"
        return (rb.RollbackAborted(rollback=opened.id, why=why, cause=opened.cause.seq, root=opened.cause.root),)
    return (_rolled_back_event(state, opened.id, target, opened.cause),)


def _entry(state: RunState, id_: str) -> ckpt_rules.Entry | None:
    return next((one for one in state.checkpoints.catalogue if one.id == id_), None)


def _rolled_back_event(
    state: RunState,
    id_: str,
    target: ckpt_rules.Entry,
    at: Cause | None = None,
    *,
    report: rb.RolledBackReport | None = None,
) -> rb.RolledBack:
    """The end, as a living trainer reports it; without a report, as the next start makes it."""
    at = at or Cause(0, 0)
    return rb.RolledBack(
        rollback=id_,
        checkpoint=target.id,
        branch=state.rollbacks.lines.next_branch,
        parent=target.branch,
        step=target.step,
        epoch=target.epoch,
        batch=target.batch,
        commit_s=report.commit_s if report else 0.0,
        confirm_s=report.confirm_s if report else 0.0,
        by_start=report is None,
        orders=target.orders,
        cause=at.seq,
        root=at.root,
    )
