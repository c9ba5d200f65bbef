"""Rollbacks: slice, apply table, the protocol as a state machine, branches.

A rollback is PREPARE (every participant says whether it can), COMMIT (they go back), CONFIRM (what they hold was compared).
All must agree; the intent is durable before COMMIT. A trainer or a daemon that dies amid a rollback finishes it by its next
start, which begins at the target: that is as far as anybody can go back. What the fast tier cannot do, the full one does
under the same id, from the newest checkpoint that is no newer. Each rollback opens a branch, and steps that are
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
from tolariad.core import snapshots as snapshot_rules
from tolariad.core import targets
from tolariad.core.catalogue import Entry
from tolariad.core.decision import Accepted, Decision, Refusal
from tolariad.core.inputs import RollbackOverdue
from tolariad.core.lines import Fork, Lines
from tolariad.core.run import Phase
from tolariad.core.targets import Place
from tolariad.core.vocabulary import Actor, Event, trainer
from tolariad.core.vocabulary import checkpoints as ck
from tolariad.core.vocabulary import control as cv
from tolariad.core.vocabulary import rollback as rb
from tolariad.core.vocabulary import snapshots as sn
from tolariad.core.vocabulary.base import ApplyTable, Cause

if TYPE_CHECKING:
    from tolariad.core.state import RunState

_PLACES_KEPT: Final = 64
_PHASES: Final = (Phase.RUNNING, Phase.RECOVERING, Phase.PAUSED, Phase.FROZEN)


class Open(msgspec.Struct, frozen=True):
    """A rollback that has no end yet. `tier`, `checkpoint` and `to_step` are those of the full tier once it has escalated."""

    id: str
    checkpoint: str
    tier: rb.Tier
    cause: Cause
    to_step: int = 0
    prepare_s: float = 0.0
    heard_mono: int = 0
    rate_factor: float = 1.0
    otherwise: rb.Otherwise = rb.Otherwise.STAY
    from_step: int = 0
    why: str = ""


class Asked(msgspec.Struct, frozen=True):
    """One that waits for the end of a re-run."""

    checkpoint: str
    tier: rb.Tier
    why: str
    cause: Cause
    step: int = 0
    otherwise: rb.Otherwise = rb.Otherwise.STAY


class Rollbacks(msgspec.Struct, frozen=True):
    """Slice of RunState. `target`: what was gone back to last; `places`: how often each step was, the latest last.
    `rate_factor`: what rates are still to be multiplied by.
    """

    begun: int = 0
    done: int = 0
    open: Open | None = None
    asked: Asked | None = None
    target: str = ""
    lines: Lines = Lines()
    rate_factor: float = 1.0
    places: tuple[tuple[int, int], ...] = ()

    @property
    def wanted(self) -> frozenset[str]:
        """What one is on its way to, or waits to go to: it stays until then, whatever its age."""
        return frozenset(one.checkpoint for one in (self.open, self.asked) if one is not None)

    @property
    def next_id(self) -> str:
        """The name of the next rollback; never used twice."""
        return f"r{self.begun + 1:04d}"


def _requested(s: Rollbacks, e: rb.RollbackRequested, at: Cause) -> Rollbacks:
    return replace(s, asked=Asked(e.checkpoint, e.tier, e.actor.reason if e.actor else "", at, e.step, e.otherwise))


def _begun(s: Rollbacks, e: rb.RollbackBegun, at: Cause) -> Rollbacks:
    return replace(
        s,
        begun=s.begun + 1,
        asked=None,
        open=Open(
            e.rollback, e.checkpoint, e.tier, at, e.to_step, 0.0, 0, e.rate_factor, e.otherwise, e.from_step, e.why
        ),
    )


def _heard(s: Rollbacks, e: rb.RollbackHeard, _: Cause) -> Rollbacks:
    return s if s.open is None else replace(s, open=replace(s.open, heard_mono=e.mono))


def _prepared(s: Rollbacks, e: rb.RollbackPrepared, _: Cause) -> Rollbacks:
    return s if s.open is None else replace(s, open=replace(s.open, prepare_s=s.open.prepare_s + e.seconds))


def _escalated(s: Rollbacks, e: rb.RollbackEscalated, _: Cause) -> Rollbacks:
    if s.open is None:
        return s
    return replace(s, open=replace(s.open, checkpoint=e.checkpoint, tier=rb.Tier.FULL, to_step=e.to_step))


def _rolled_back(s: Rollbacks, e: rb.RolledBack, at: Cause) -> Rollbacks:
    fork = Fork(e.branch, e.parent, e.step, e.epoch, e.batch, at.seq)
    factor = s.open.rate_factor if s.open else 1.0
    return replace(
        s,
        done=s.done + 1,
        open=None,
        target=e.checkpoint,
        places=_with_one_more(s.places, e.step),
        lines=s.lines.forked(fork),
        rate_factor=factor,
    )


def _with_one_more(counts: tuple[tuple[int, int], ...], step: int) -> tuple[tuple[int, int], ...]:
    """The counts with one more for `step`, the latest last; the oldest of too many are forgotten."""
    known = dict(counts)
    count = known.pop(step, 0) + 1
    return (*known.items(), (step, count))[-_PLACES_KEPT:]


def _backed_off(s: Rollbacks, _: rb.RatesBackedOff, __: Cause) -> Rollbacks:
    return replace(s, rate_factor=1.0)


def _aborted(s: Rollbacks, _: rb.RollbackAborted, __: Cause) -> Rollbacks:
    return replace(s, open=None)


APPLY: Final[ApplyTable] = {
    rb.RollbackRequested: _requested,
    rb.RollbackBegun: _begun,
    rb.RollbackHeard: _heard,
    rb.RollbackPrepared: _prepared,
    rb.RollbackEscalated: _escalated,
    rb.RolledBack: _rolled_back,
    rb.RollbackAborted: _aborted,
    rb.RatesBackedOff: _backed_off,
}


# -- orders ------------------------------------------------------------------------------------------------------------


def may_begin(state: RunState) -> bool:
    """Neither ended nor ending (the last checkpoint is being written), and no other one under way."""
    return state.run.phase in _PHASES and state.rollbacks.open is None and not ckpt_rules.is_ending(state)


def decide_command(state: RunState, command: rb.Rollback, actor: Actor) -> Decision:
    """An operator's order: recorded, then begun at once, or when the re-run under way is over."""
    phase = state.run.phase
    if not may_begin(state) or state.rollbacks.asked is not None:
        at = "at its end, and its last checkpoint is being written" if ckpt_rules.is_ending(state) else phase.value
        why = f"the run is {at}; a rollback needs one that is running, paused or frozen, and no other rollback"
        return Decision(answer=Refusal(error="WrongPhase", why=why, phase=phase.value))
    target = targets.find(state, command)
    if isinstance(target, str):
        return Decision(answer=Refusal(error="NotFound", why=target, phase=phase.value))
    tier = command.tier or rb.Tier.FULL
    is_named = command.to or command.epoch is not None or command.step is not None
    otherwise = rb.Otherwise.STAY if is_named else rb.Otherwise.OLDER
    asked = rb.RollbackRequested(
        checkpoint=target.id, tier=tier, id=command.id, actor=actor, step=target.step, otherwise=otherwise
    )
    accepted = Decision((asked,), (), Accepted())
    if state.rerun.open is not None or (state.trainer.alive and not state.trainer.began):
        return accepted
    return accepted + begin(state, target, actor.reason, otherwise)


def begin(state: RunState, target: Place, why: str, otherwise: rb.Otherwise, cause: Cause | None = None) -> Decision:
    """PREPARE. Where no trainer lives, the next one begins at the target, and that is all of it."""
    at = cause or Cause(0, 0)
    tier = rb.Tier.FAST if target.ref.slot is not None else rb.Tier.FULL
    begun = _begun_event(state, Asked(target.id, tier, why, at, target.step, otherwise))
    if state.trainer.alive:
        order = rb.PrepareRollback(rollback=begun.rollback, checkpoint=target.ref, tier=tier)
        given_up = ckpt_rules.abort_beyond(state, target.step, "a rollback began")
        return Decision((begun,)) + given_up + Decision((), (order,))
    finished = Decision((begun, _rolled_back_event(state, target, begun)))
    if state.run.phase not in (Phase.PAUSED, Phase.FROZEN):
        return finished  # the next start is under way already
    if state.run.pause is not None:
        return finished + Decision((run_rules.paused(state, state.run.pause, target.step),))
    return finished + Decision((), (run_rules.spawn(state),))


def _begun_event(state: RunState, asked: Asked) -> rb.RollbackBegun:
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


def begin_asked(state: RunState) -> Decision:
    """What was ordered during the re-run that is over now."""
    asked = state.rollbacks.asked
    if asked is None or not may_begin(state):
        return Decision()
    # A snapshot may be gone with its daemon. An order of an older version did not say of which step it was.
    target = _target(state, asked.checkpoint) or (targets.on_disk(state, asked.step) if asked.step else None)
    return _lost(state, asked) if target is None else begin(state, target, asked.why, asked.otherwise, asked.cause)


def _lost(state: RunState, asked: Asked) -> Decision:
    """The order has its end, or no other could ever be given."""
    begun = _begun_event(state, asked)
    why = f"{asked.checkpoint} cannot be used any more, nor any checkpoint at or before step {asked.step}"
    at = asked.cause
    return Decision((begun, rb.RollbackAborted(rollback=begun.rollback, why=why, cause=at.seq, root=at.root)))


# -- the protocol ------------------------------------------------------------------------------------------------------


def decide_report(
    state: RunState,
    report: rb.RollbackHeardReport | rb.RollbackPreparedReport | rb.RollbackRefusedReport | rb.RolledBackReport,
) -> Decision:
    """The next phase, or the end."""
    opened = state.rollbacks.open
    if opened is None or opened.id != report.rollback:
        return Decision()
    at = opened.cause
    match report:
        case rb.RollbackHeardReport():
            heard = rb.RollbackHeard(rollback=opened.id, cause=at.seq, root=at.root)
            return Decision() if opened.heard_mono else Decision((heard,))
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
    target = snapshot_rules.place(state, opened.checkpoint)
    if target is None:
        return Decision()
    done = _rolled_back_event(state, target, opened, report)
    started = ck.TrainingStarted(incarnation=state.trainer.incarnation, step=target.step, checkpoint=target.id)
    decision = Decision((done, started))
    decision += Decision(rate_rules.restored(state, report.rates))
    if state.run.pause is not None:
        return decision + Decision((), (cv.Hold(),))
    return decision


def overdue(state: RunState, mono: int) -> RollbackOverdue | None:
    """Has the one under way had its time, all phases of both tiers together? Counted from when training stood still."""
    opened = state.rollbacks.open
    if opened is None or not opened.heard_mono or mono - opened.heard_mono < _deadline_s(state) * 1e9:
        return None
    return RollbackOverdue(opened.id)


def _deadline_s(state: RunState) -> float:
    return state.overruns.limit_of("rollback_deadline")


def decide_overdue(state: RunState, given: RollbackOverdue) -> str:
    """Why the run must halt, where the rollback has not ended meanwhile."""
    opened = state.rollbacks.open
    if opened is None or opened.id != given.rollback:
        return ""
    limit_s = _deadline_s(state)
    return f"rollback {opened.id} to {opened.checkpoint} was not done {limit_s:.0f} s after training stood still for it"


def _refused(state: RunState, opened: Open, report: rb.RollbackRefusedReport) -> Decision:
    """The target is not to be used again, or not by this trainer. It goes on from an older one, unless a checkpoint was named."""
    at, gone = opened.cause, rejected(state, opened.checkpoint, report)
    why = f"{opened.checkpoint} cannot be used: {report.file}: {report.why}"
    if (target := targets.instead(state, opened)) is not None:
        order = rb.PrepareRollback(rollback=opened.id, checkpoint=target.ref, tier=rb.Tier.FULL)
        escalated = Decision((_escalated_event(opened, target, why), gone))
        return escalated + ckpt_rules.abort_beyond(state, target.step, "a rollback began") + Decision((), (order,))
    aborted = rb.RollbackAborted(rollback=opened.id, why=f"checkpoint {why}", cause=at.seq, root=at.root)
    if report.restored:
        # What was there before is overwritten: only a start from a checkpoint helps.
        kill = trainer.KillTrainer(
            incarnation=state.trainer.incarnation, why="its rollback failed when it was restored"
        )
        return Decision((aborted, gone), (kill,))
    decision = Decision((aborted, gone), (rb.AbortRollback(rollback=opened.id),))
    if state.run.pause is not None:
        return decision + Decision((), (cv.Hold(),))
    return decision


def rejected(
    state: RunState, id_: str, report: rb.RollbackRefusedReport | ck.CheckpointUnusableReport, context: str = ""
) -> sn.SnapshotRejected | ck.CheckpointRejected | ck.CheckpointUnfit:
    """A snapshot, or a checkpoint, that failed its verification, or does not fit; `context`: of the model as it was built."""
    file, why = report.file, report.why
    if snapshot_rules.find(state, id_) is not None:
        return sn.SnapshotRejected(id=id_, why=f"{file}: {why}")
    if report.unfit:
        incarnation = state.trainer.incarnation
        return ck.CheckpointUnfit(id=id_, file=file, why=why, incarnation=incarnation, context=context)
    return ck.CheckpointRejected(id=id_, file=file, why=why)


def _escalated_event(opened: Open, target: Entry, why: str) -> rb.RollbackEscalated:
    at = opened.cause
    return rb.RollbackEscalated(
        rollback=opened.id, checkpoint=target.id, to_step=target.step, why=why, cause=at.seq, root=at.root
    )


def pending(state: RunState) -> tuple[Event, ...]:
    """The trainer is gone amid a rollback: the next one begins at the target, so the rollback is done."""
    opened = state.rollbacks.open
    if opened is None:
        return ()
    target = _target(state, opened.checkpoint)
    if target is not None:
        return (_rolled_back_event(state, target, opened),)
    if opened.tier is rb.Tier.FAST and (older := targets.on_disk(state, opened.to_step)) is not None:
        escalated = _escalated_event(opened, older, f"snapshot {opened.checkpoint} went with the daemon's memory")
        return (escalated, _rolled_back_event(state, older, opened))
    why = "its target cannot be used any more"
    return (rb.RollbackAborted(rollback=opened.id, why=why, cause=opened.cause.seq, root=opened.cause.root),)


def _target(state: RunState, id_: str) -> Place | None:
    """What was chosen, where it still may be gone back to."""
    found = snapshot_rules.place(state, id_)
    return None if isinstance(found, Entry) and not found.is_target else found


def _rolled_back_event(
    state: RunState, target: Place, begun: Open | rb.RollbackBegun, report: rb.RolledBackReport | None = None
) -> rb.RolledBack:
    """The end, as a living trainer reports it; without a report, as the next start makes it."""
    id_, at = (begun.id, begun.cause) if isinstance(begun, Open) else (begun.rollback, Cause(0, 0))
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
        spans=report.spans if report else rb.RollbackSpans(),
        from_step=begun.from_step,
        why=begun.why,
        cause=at.seq,
        root=at.root,
    )
