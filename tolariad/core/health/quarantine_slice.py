"""Quarantine: slice, apply table.

Batches enter after a rollback by the detector (`rollback.skip_batches`), and if the trainer died of one three times
(`on_death: skip_batch`); its deaths are then counted from 0. The trainer skips them without a forward pass, and a
re-run does the same. A checkpoint in quarantine is never a target. A seed would be culled and embargoed; no run has
seeds yet, so an order for one is refused.

Invariants: no name is used twice. The trainer always gets the whole list, so that it cannot differ from this one. A
full quarantine takes no more entries.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from tolariad.core.base import ApplyTable, Cause
from tolariad.core.health import quarantine_words as qn

ENTRIES_MAX: Final = 256
# After so many deaths in a row at one step, the batch is the cause.
DEATHS_OF_A_BATCH: Final = 3
# So many batches in a row, without a step between them, may enter for the trainer's deaths. For the next one the
# trainer itself is suspected, and the limit on its deaths counts on.
CURED_MAX: Final = 3


class QuarantineEntry(msgspec.Struct, frozen=True):
    """One entry. `since`: the number of its event. `until`: the epoch whose end removes it."""

    name: str
    why: str
    since: int
    batches: qn.Batches | None = None
    checkpoint: str = ""
    until: int | None = None
    seed: str = ""
    root: int = 0


class Quarantine(msgspec.Struct, frozen=True):
    """Slice of RunState: at most ENTRIES_MAX entries, oldest first."""

    added: int = 0
    entries: tuple[QuarantineEntry, ...] = ()

    @property
    def batches(self) -> tuple[qn.Batches, ...]:
        """Return the batches that the trainer skips."""
        return tuple(one.batches for one in self.entries if one.batches is not None)

    def of(self, batches: qn.Batches | None, checkpoint: str) -> QuarantineEntry | None:
        """Return the entry of exactly these batches, or of this checkpoint, or None."""
        same = (one for one in self.entries if one.batches == batches and one.checkpoint == checkpoint)
        return next(same, None)


class HasQuarantine(Protocol):
    """A state with this slice."""

    @property
    def quarantine(self) -> Quarantine:
        """Return the quarantine."""


def _added(s: Quarantine, e: qn.QuarantineAdded, at: Cause) -> Quarantine:
    entry = QuarantineEntry(e.name, e.why, at.seq, e.batches, e.checkpoint, e.until, e.seed, at.root)
    return Quarantine(s.added + 1, (*s.entries, entry)[:ENTRIES_MAX])


def _removed(s: Quarantine, e: qn.QuarantineRemoved, _: Cause) -> Quarantine:
    return replace(s, entries=tuple(one for one in s.entries if one.name != e.name))


APPLY: Final[ApplyTable] = {qn.QuarantineAdded: _added, qn.QuarantineRemoved: _removed}
