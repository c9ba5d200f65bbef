"""Space on the journal's disk: slice, apply table, queries.

Invariants: the run pauses while there is still room for everything that ends it in order (the floor is three segments and
a checkpoint, so the last spare segment is not begun); what paused for want of space goes on by itself, unless somebody
ordered a pause meanwhile; below the floor no checkpoint is begun and no telemetry recorded. It must not know: files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from tolariad.core.base import ApplyTable, Cause
from tolariad.core.inputs import DiskMeasured
from tolariad.core.run import disk_words as disk
from tolariad.core.run.slice import TERMINAL

if TYPE_CHECKING:
    from tolariad.core.state import RunState

FLOOR_SEGMENTS: Final = 3
# So much more than the floor must be free before the run goes on, or it would pause again at once.
_MARGIN: Final = 1 / 8


class Disk(msgspec.Struct, frozen=True):
    """Slice of RunState: since when space is short, None while it is not; what was free then, and what is wanted."""

    low: Cause | None = None
    free: int = 0
    floor: int = 0

    @property
    def words(self) -> str:
        """What is the matter, as a clause."""
        return f"the journal's disk is low: {self.free:,} bytes were free, {self.floor:,} are needed"


def _low(_: Disk, e: disk.DiskLow, at: Cause) -> Disk:
    return Disk(low=at, free=e.free, floor=e.floor)


def _recovered(_: Disk, e: disk.DiskRecovered, __: Cause) -> Disk:
    return Disk(free=e.free, floor=e.floor)


APPLY: Final[ApplyTable] = {disk.DiskLow: _low, disk.DiskRecovered: _recovered}


def floor_bytes(state: RunState, segment_bytes: int) -> int:
    """What must be free: three segments, and a checkpoint as large as the newest one."""
    newest = state.checkpoints.newest
    return FLOOR_SEGMENTS * segment_bytes + (newest.size if newest is not None else 0)


def would_change(state: RunState, given: DiskMeasured) -> bool:
    """Whether this measurement is news; others need not be handed in."""
    if state.run.phase in TERMINAL:
        return False
    if state.disk.low is None:
        return given.free < given.floor
    return given.free >= given.floor * (1 + _MARGIN)


def is_pausing(state: RunState) -> bool:
    """Whether want of space, and nothing else, is why the run stands or is about to."""
    low, pause = state.disk.low, state.run.pause
    return low is not None and pause is not None and pause.seq == low.seq
