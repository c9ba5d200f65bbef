"""Quarantine: slice, apply table, orders, and what enters it without one.

Batches enter after a rollback by the detector (`rollback.skip_batches`) and where the trainer died of one three times
(`on_death: skip_batch`), and then its deaths are counted anew; they are passed over without a forward pass, which a re-run repeats. A checkpoint in it is never a
target, a seed would be culled and embargoed (no run has one yet, so naming one is refused). Invariants: names are never used twice; the trainer's list is the whole one, so that it cannot differ from this; a
full quarantine takes no more. It must not know: batches' contents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from tolariad.core.decision import Accepted, Decision, Refusal
from tolariad.core.run import TERMINAL
from tolariad.core.vocabulary import Actor, Effect, steps
from tolariad.core.vocabulary import quarantine as qn
from tolariad.core.vocabulary.base import ApplyTable, Cause

if TYPE_CHECKING:
    from tolariad.core.state import RunState

ENTRIES_MAX: Final = 256
# So many deaths in a row at one step: then it is the batch.
DEATHS_OF_A_BATCH: Final = 3
# So many batches in a row, no step between them, take the blame for their deaths; with the next one it is the trainer that is
# ill, and the limit on its deaths counts on.
CURED_MAX: Final = 3


class Entry(msgspec.Struct, frozen=True):
    """One of them; `since` is the number of its event, `until` the epoch whose end takes it out."""

    name: str
    why: str
    since: int
    batches: qn.Batches | None = None
    checkpoint: str = ""
    until: int | None = None
    seed: str = ""
    root: int = 0


class Quarantine(msgspec.Struct, frozen=True):
    """Slice of RunState: ENTRIES_MAX at most, oldest first."""

    added: int = 0
    entries: tuple[Entry, ...] = ()

    @property
    def batches(self) -> tuple[qn.Batches, ...]:
        """What the trainer passes over."""
        return tuple(one.batches for one in self.entries if one.batches is not None)

    def of(self, batches: qn.Batches | None, checkpoint: str) -> Entry | None:
        """The entry of just these batches, or of this checkpoint; None where there is none."""
        same = (one for one in self.entries if one.batches == batches and one.checkpoint == checkpoint)
        return next(same, None)


def _added(s: Quarantine, e: qn.QuarantineAdded, at: Cause) -> Quarantine:
    entry = Entry(e.name, e.why, at.seq, e.batches, e.checkpoint, e.until, e.seed, at.root)
    return Quarantine(s.added + 1, (*s.entries, entry)[:ENTRIES_MAX])


def _removed(s: Quarantine, e: qn.QuarantineRemoved, _: Cause) -> Quarantine:
    return replace(s, entries=tuple(one for one in s.entries if one.name != e.name))


APPLY: Final[ApplyTable] = {qn.QuarantineAdded: _added, qn.QuarantineRemoved: _removed}


def add(
    state: RunState,
    why: str,
    *,
    batches: qn.Batches | None = None,
    checkpoint: str = "",
    id_: str = "",
    actor: Actor | None = None,
    until: int | None = None,
    deaths: int = 0,
) -> Decision:
    """One more entry, unless it is there or there is no room."""
    held = state.quarantine
    if held.of(batches, checkpoint) is not None or len(held.entries) >= ENTRIES_MAX:
        return Decision()
    name = f"q{held.added + 1:04d}"
    added = qn.QuarantineAdded(
        name=name, why=why, batches=batches, checkpoint=checkpoint, id=id_, actor=actor, until=until, deaths=deaths
    )
    return Decision((added,), _told(state, (*held.batches, batches)) if batches is not None else ())


def _told(state: RunState, batches: tuple[qn.Batches, ...]) -> tuple[Effect, ...]:
    """A trainer that is not built yet gets the list with its order to train."""
    return (qn.SetQuarantine(batches=batches),) if state.trainer.alive and state.trainer.ready else ()


def decide_add(state: RunState, command: qn.QuarantineAdd, actor: Actor) -> Decision:
    """By an operator."""
    why = _refusal(state, command)
    if why:
        return _refused(state, "Refused", why)
    missing = _missing(state, command)
    if missing:
        return _refused(state, "NotFound", missing)
    reason = actor.reason or "an operator ordered it"
    decision = add(
        state,
        reason,
        batches=command.batches,
        checkpoint=command.checkpoint,
        id_=command.id,
        actor=actor,
        until=command.until,
    )
    if not decision.events:
        return _refused(state, "Refused", _no_room(state, command))
    return decision + Decision(answer=Accepted())


def _refusal(state: RunState, command: qn.QuarantineAdd) -> str:
    if state.run.phase in TERMINAL:
        return f"the run is {state.run.phase.value}; nothing of it will be used again"
    batches = command.batches
    if (batches is not None) + bool(command.checkpoint) + bool(command.seed) != 1:
        return "batches, a checkpoint or a seed are put into quarantine, one of them at a time"
    if batches is not None and not (batches.epoch >= 1 and 1 <= batches.first <= batches.last):
        return "epochs and batches are counted from 1, and the last batch is not before the first"
    if command.until is not None and command.until <= state.progress.epoch_finished:
        return f"epoch {command.until} has ended already; nothing would be in quarantine"
    targets = [one.id for one in state.checkpoints.catalogue if one.is_target]
    if targets == [command.checkpoint]:
        return f"{command.checkpoint} is the last checkpoint that the run could start from; `tolaria checkpoint` takes another"
    return ""


def _no_room(state: RunState, command: qn.QuarantineAdd) -> str:
    known = state.quarantine.of(command.batches, command.checkpoint)
    if known is not None:
        return f"it is in quarantine already, as {known.name}; `tolaria quarantine list` shows it"
    return f"{ENTRIES_MAX} entries are in quarantine, which is all it holds; `tolaria quarantine remove` makes room"


def _missing(state: RunState, command: qn.QuarantineAdd) -> str:
    if command.seed:
        return f"there is no seed {command.seed!r}: this run has no seeds"
    if command.checkpoint and not any(one.id == command.checkpoint for one in state.checkpoints.catalogue):
        return f"there is no checkpoint {command.checkpoint!r}; `tolaria checkpoints` lists them"
    return ""


def decide_remove(state: RunState, command: qn.QuarantineRemove, actor: Actor) -> Decision:
    """By an operator."""
    entry = next((one for one in state.quarantine.entries if one.name == command.name), None)
    if entry is None:
        return _refused(state, "NotFound", f"there is no entry {command.name!r}; `tolaria quarantine list` lists them")
    removed = qn.QuarantineRemoved(name=entry.name, id=command.id, actor=actor)
    left = tuple(one.batches for one in state.quarantine.entries if one.batches is not None and one is not entry)
    return Decision((removed,), _told(state, left) if entry.batches is not None else (), Accepted())


def after_epoch(state: RunState) -> Decision:
    """Behind an epoch's recorded end: what was in quarantine until then is so no more."""
    ended = state.progress.epoch_finished
    over = [one for one in state.quarantine.entries if one.until is not None and one.until <= ended]
    if not over:
        return Decision()
    left = tuple(one.batches for one in state.quarantine.entries if one.batches is not None and one not in over)
    told = _told(state, left) if any(one.batches is not None for one in over) else ()
    return Decision(tuple(qn.QuarantineRemoved(name=one.name) for one in over), told)


def _refused(state: RunState, error: str, why: str) -> Decision:
    return Decision(answer=Refusal(error=error, why=why, phase=state.run.phase.value))


def cause_of(state: RunState, report: steps.StepSkippedReport) -> Cause:
    """Why these batches were passed over: the entry's event. None is named where it was taken out meanwhile."""
    if report.reason is not steps.SkipReason.QUARANTINED:
        return Cause(0, 0)
    progress = state.progress
    before = progress.batch if report.epoch == progress.epoch else 0
    for one in state.quarantine.entries:
        held = one.batches
        if held is not None and held.epoch == report.epoch and held.first <= report.batch and before < held.last:
            return Cause(one.since, one.root)
    return Cause(0, 0)


def of_a_death(state: RunState) -> Decision:
    """The trainer died once more at this step: has it died of the next batch? Asked before the death is folded."""
    died = state.trainer
    if not state.run.policy.skip_batch_on_death or died.deaths + 1 != DEATHS_OF_A_BATCH:
        return Decision()
    if not died.began or state.rerun.open is not None:
        return Decision()
    progress = state.progress
    if progress.validating is not None:
        # Of a batch that is validated: none of training's would be the right one.
        return Decision()
    is_next = progress.epoch_finished >= progress.epoch
    epoch, batch = (progress.epoch + 1, 1) if is_next else (progress.epoch, progress.batch + 1)
    why = f"the trainer died {DEATHS_OF_A_BATCH} times in a row behind step {progress.step}"
    blamed = DEATHS_OF_A_BATCH if died.cured < CURED_MAX else 0
    decision = add(state, why, batches=qn.Batches(max(1, epoch), batch, batch), deaths=blamed)
    # Nobody lives to be told; the next one gets the list with its order to train.
    return Decision(decision.events)
