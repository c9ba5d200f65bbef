"""Space on the journal's disk: slice, apply table.

Invariants: the run pauses while there is still room for everything that ends it in order (the floor is three segments and
a checkpoint, so the last spare segment is not begun); what paused for want of space goes on by itself, unless somebody
ordered a pause meanwhile; below the floor no checkpoint is begun and no telemetry recorded. It must not know: files.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from tolariad.core.base import ApplyTable, Cause
from tolariad.core.run import disk_words as disk


class Disk(msgspec.Struct, frozen=True):
    """Slice of RunState: since when space is short, None while it is not; what was free then, and what is wanted."""

    low: Cause | None = None
    free: int = 0
    floor: int = 0

    @property
    def words(self) -> str:
        """What is the matter, as a clause."""
        return f"the journal's disk is low: {self.free:,} bytes were free, {self.floor:,} are needed"


class HasDisk(Protocol):
    """A state with this slice."""

    @property
    def disk(self) -> Disk:
        """Return what is known of the journal's disk."""


def _low(_: Disk, e: disk.DiskLow, at: Cause) -> Disk:
    return Disk(low=at, free=e.free, floor=e.floor)


def _recovered(_: Disk, e: disk.DiskRecovered, __: Cause) -> Disk:
    return Disk(free=e.free, floor=e.floor)


APPLY: Final[ApplyTable] = {disk.DiskLow: _low, disk.DiskRecovered: _recovered}
