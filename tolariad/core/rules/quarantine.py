"""The rules of quarantine: orders, entries that the run adds by itself, and the list for a living trainer."""

from __future__ import annotations

from typing import Protocol

from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.calc.seeds.stages import Stage
from tolariad.core.decision import Decision
from tolariad.core.engine import At


class Reads(q.ReadsHealth, st.HasSeeds, Protocol):
    """The slices that the rules of quarantine read."""


def send(state: Reads, event: m.QuarantineAdded | m.QuarantineRemoved, at: At[Reads]) -> Decision | None:
    """Send the whole list to a trainer that is built. Any other gets it with its order to train."""
    if isinstance(event, m.QuarantineAdded):
        batches = event.batches
    else:
        batches = next((one.batches for one in at.was.quarantine.entries if one.name == event.name), None)
    if batches is None or not state.trainer.takes_orders:
        return None
    return Decision((), (m.SetQuarantine(batches=state.quarantine.batches),))


# -- orders ------------------------------------------------------------------------------------------------------------


def order_to_add(state: Reads, command: m.QuarantineAdd) -> m.QuarantineAdded | m.Refusal:
    """Add the entry that an operator ordered, or refuse it."""
    why = _refusal(state, command)
    if why:
        return m.Refusal("Refused", why)
    missing = _missing(state, command)
    if missing:
        return m.Refusal("NotFound", missing)
    why = command.reason or "an operator ordered it"
    event = m.QuarantineAdded.of(command, name=state.quarantine.next_name, why=why)
    if not state.quarantine.takes(event):
        return m.Refusal("Refused", _no_room(state, command))
    return event


def _refusal(state: Reads, command: m.QuarantineAdd) -> str:
    if state.run.phase in st.TERMINAL:
        return f"the run is {state.run.phase.value}; none of its data will be used again"
    batches = command.batches
    if (batches is not None) + bool(command.checkpoint) + bool(command.seed) != 1:
        return "batches, a checkpoint or a seed are put into quarantine, one of them at a time"
    if batches is not None and not (batches.epoch >= 1 and 1 <= batches.first <= batches.last):
        return "epochs and batches are counted from 1, and the last batch is not before the first"
    if command.until is not None and command.until <= state.progress.epoch_finished:
        return f"epoch {command.until} has ended already, so the quarantine would have no effect"
    if command.seed and state.seeds.seed(command.seed).stage is Stage.FOSSILIZED:
        return f"the seed in slot {command.seed} is fossilized: it is a permanent part of the model"
    targets = [one.id for one in state.checkpoints.catalogue if one.is_target]
    if targets == [command.checkpoint]:
        last = f"{command.checkpoint} is the last checkpoint that the run could start from"
        return f"{last}; `tolaria checkpoint` takes another"
    return ""


def _no_room(state: Reads, command: m.QuarantineAdd) -> str:
    known = state.quarantine.of(command.batches, command.checkpoint, command.seed)
    if known is not None:
        return f"it is in quarantine already, as {known.name}; `tolaria quarantine list` shows it"
    return f"quarantine holds its maximum of {st.ENTRIES_MAX} entries; `tolaria quarantine remove` makes room"


def _missing(state: Reads, command: m.QuarantineAdd) -> str:
    if command.seed and not state.seeds.has(command.seed):
        slots = ", ".join(one.name for one in state.seeds.slots)
        return f"there is no seed {command.seed!r}; a seed has the name of its slot: {slots or 'this run has none'}"
    if command.checkpoint and not any(one.id == command.checkpoint for one in state.checkpoints.catalogue):
        return f"there is no checkpoint {command.checkpoint!r}; `tolaria checkpoints` lists them"
    return ""


def order_to_remove(state: Reads, command: m.QuarantineRemove) -> m.QuarantineRemoved | m.Refusal:
    """Remove the entry that an operator named, or refuse it."""
    entry = next((one for one in state.quarantine.entries if one.name == command.name), None)
    if entry is None:
        return m.Refusal("NotFound", f"there is no entry {command.name!r}; `tolaria quarantine list` lists them")
    return m.QuarantineRemoved(name=entry.name)


# -- without an order --------------------------------------------------------------------------------------------------


def add_suspects(state: Reads, event: m.EmergencyRaised, _: At[Reads]) -> Decision | None:
    """Add the suspected batches before the rollback, so that the trainer skips them when it begins again."""
    if event.suspects is None:
        return None
    added, known = list[m.QuarantineAdded](), state.quarantine
    for number, batches in enumerate((event.suspects, *event.more_suspects)):
        entry = m.QuarantineAdded(name=known.name_after(number), why=event.why, batches=batches)
        if known.takes(entry):
            added.append(entry)
    return Decision(tuple(added)) if added else None


def _added(state: Reads, entry: m.QuarantineAdded) -> Decision | None:
    return Decision((entry,)) if state.quarantine.takes(entry) else None


def remove_ended(state: Reads, event: m.EpochFinished, _: At[Reads]) -> Decision | None:
    """After an epoch: remove the entries that were to stay until its end."""
    ended = [one for one in state.quarantine.entries if one.until is not None and one.until <= event.epoch]
    return Decision(tuple(m.QuarantineRemoved(name=one.name) for one in ended)) if ended else None


def after_death(state: Reads, event: m.TrainerDied, at: At[Reads]) -> Decision | None:
    """Add the next batch if the trainer died at this step for the third time in a row, or its exception repeats."""
    died, batches = at.was.trainer, q.batch_of_death(at.was)
    if event.restart_s is None or batches is None:
        return None
    if died.repeated is not None:
        why = f"it raised the same exception twice: {died.repeated.words}"
    elif died.deaths + 1 == st.DEATHS_OF_A_BATCH:
        why = f"the trainer died {st.DEATHS_OF_A_BATCH} times in a row after step {state.progress.step}"
    else:
        return None
    blamed = died.deaths + 1 if died.cured < st.CURED_MAX else 0
    return _added(state, m.QuarantineAdded(name=state.quarantine.next_name, why=why, batches=batches, deaths=blamed))
