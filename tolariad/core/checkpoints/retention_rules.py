"""What follows for checkpoints to remove: removals that begin and end, and files that belong to no checkpoint."""

from __future__ import annotations

from typing import Protocol

from tolariad.core.base import Effect, Event
from tolariad.core.checkpoints import words as ck
from tolariad.core.checkpoints.retention_ask import AT_ONCE, freed, plan, used, wanted, witnessed
from tolariad.core.checkpoints.slice import HasCheckpoints
from tolariad.core.decision import Decision
from tolariad.core.engine import At
from tolariad.core.health.detection_slice import HasInstability
from tolariad.core.inputs import CheckpointRemoved, Opened, Reconfigured
from tolariad.core.rollback.slice import HasRollbacks
from tolariad.core.run.slice import HasRun
from tolariad.core.trainer import words as tv
from tolariad.core.trainer.slice import HasTrainer


class Reads(HasRun, HasCheckpoints, HasTrainer, HasRollbacks, HasInstability, Protocol):
    """The slices that retention reads."""


def retain(
    state: Reads,
    what: Opened | Reconfigured | ck.CheckpointCommitted | ck.CheckpointAborted,
    at: At[Reads],
) -> Decision | None:
    """Begin to remove what is to go, and record if what must stay exceeds the quota."""
    if isinstance(what, ck.CheckpointAborted) and not state.trainer.alive:
        return None  # it ended with its trainer: nothing is larger or older for it
    held, policy = state.checkpoints, state.run.policy
    going = plan(witnessed(held, policy, at.now.wall), policy, at.now.wall, wanted(state))
    events, effects = list[Event](), list[Effect]()
    for one in going[:AT_ONCE]:
        id_, keeps = one.entry.id, one.keeps_importance
        events.append(ck.CheckpointDeletionBegun(id=id_, why=one.why, size=freed(one), keeps_importance=keeps))
        effects.append(ck.DeleteCheckpoint(id=id_, keeps_importance=keeps))
    left = used(held) - sum(map(freed, going))
    if left > policy.quota and not held.exhausted:
        events.append(ck.StorageExhausted(used=left, quota=policy.quota))
    elif left <= policy.quota and held.exhausted:
        events.append(ck.StorageRelieved(used=left, quota=policy.quota))
    return Decision(tuple(events), tuple(effects))


def removed(state: Reads, given: CheckpointRemoved, _: At[Reads]) -> Decision | None:
    """Record that the checkpoint is removed, or that it could not be; the next checkpoint tries again."""
    begun = next((one for one in state.checkpoints.removing if one.id == given.id), None)
    if begun is None:
        return None
    if given.error:
        return Decision((ck.CheckpointDeletionAborted(id=given.id, why=given.error).caused_by(begun.cause),))
    return Decision((ck.CheckpointDeleted.of(given).caused_by(begun.cause),))


def sweep(state: Reads, what: Opened | tv.TrainerDied | tv.TrainerEnded, at: At[Reads]) -> Decision | None:
    """Remove files on disk that belong to no checkpoint: of all ordered so far, only committed and open ones stay."""
    if not isinstance(what, Opened) and not at.was.checkpoints.open:
        return None
    if isinstance(what, tv.TrainerDied) and what.reason is tv.DeathReason.WITH_DAEMON:
        return None  # the start that records this death sweeps by itself
    held = state.checkpoints
    if not held.ordered:
        return None
    known = tuple(entry.id for entry in held.catalogue)
    return Decision((), (ck.SweepCheckpoints(committed=known, highest=held.ordered),))
