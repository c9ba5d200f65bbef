"""Quarantine: slice, apply table.

Batches enter after a rollback by the detector (`rollback.skip_batches`) and where the trainer died of one three times
(`on_death: skip_batch`), and then its deaths are counted anew; they are passed over without a forward pass, which a re-run repeats. A checkpoint in it is never a
target, a seed would be culled and embargoed (no run has one yet, so naming one is refused). Invariants: names are never used twice; the trainer's list is the whole one, so that it cannot differ from this; a
full quarantine takes no more. It must not know: batches' contents.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from tolariad.core.base import ApplyTable, Cause
from tolariad.core.health import quarantine_words as qn

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


class HasQuarantine(Protocol):
    """A state with this slice."""

    @property
    def quarantine(self) -> Quarantine:
        """Return what is in quarantine."""


def _added(s: Quarantine, e: qn.QuarantineAdded, at: Cause) -> Quarantine:
    entry = Entry(e.name, e.why, at.seq, e.batches, e.checkpoint, e.until, e.seed, at.root)
    return Quarantine(s.added + 1, (*s.entries, entry)[:ENTRIES_MAX])


def _removed(s: Quarantine, e: qn.QuarantineRemoved, _: Cause) -> Quarantine:
    return replace(s, entries=tuple(one for one in s.entries if one.name != e.name))


APPLY: Final[ApplyTable] = {qn.QuarantineAdded: _added, qn.QuarantineRemoved: _removed}
