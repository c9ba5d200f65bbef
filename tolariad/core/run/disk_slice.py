"""Space on the journal's disk: slice, apply table.

Invariants: the run pauses while there is still space for everything that an orderly end needs. The floor is three
segments and a checkpoint, so the last spare segment stays unused. A run that paused for low space goes on by itself,
unless somebody ordered a pause meanwhile. Below the floor no checkpoint is begun and no telemetry is recorded.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from tolariad.core.base import ApplyTable, Cause
from tolariad.core.run import disk_words as disk


class Disk(msgspec.Struct, frozen=True):
    """Slice of RunState. `low`: the event since which space is low, or None. `free`, `floor`: the last bytes seen."""

    low: Cause | None = None
    free: int = 0
    floor: int = 0

    @property
    def words(self) -> str:
        """Return the problem as a clause."""
        return f"the journal's disk is low: {self.free:,} bytes were free, {self.floor:,} are needed"


class HasDisk(Protocol):
    """A state with this slice."""

    @property
    def disk(self) -> Disk:
        """Return the state of the journal's disk."""


def _low(_: Disk, e: disk.DiskLow, at: Cause) -> Disk:
    return Disk(low=at, free=e.free, floor=e.floor)


def _recovered(_: Disk, e: disk.DiskRecovered, __: Cause) -> Disk:
    return Disk(free=e.free, floor=e.floor)


APPLY: Final[ApplyTable] = {disk.DiskLow: _low, disk.DiskRecovered: _recovered}
