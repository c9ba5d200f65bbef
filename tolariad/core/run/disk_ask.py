"""How much space the run needs, whether a measurement leads to an event, and whether the run pauses for low space."""

from __future__ import annotations

from typing import Final, Protocol

from tolariad.core.checkpoints.slice import HasCheckpoints
from tolariad.core.inputs import DiskMeasured
from tolariad.core.run.disk_slice import HasDisk
from tolariad.core.run.slice import TERMINAL, HasRun

FLOOR_SEGMENTS: Final = 3
# This share above the floor must be free before the run goes on. Otherwise it would pause again at once.
_MARGIN: Final = 1 / 8


class RunAndDisk(HasRun, HasDisk, Protocol):
    """The slices that a pause for low space depends on."""


def floor_bytes(state: HasCheckpoints, segment_bytes: int) -> int:
    """Return the bytes that must be free: three segments, and a checkpoint as large as the newest one."""
    newest = state.checkpoints.newest
    return FLOOR_SEGMENTS * segment_bytes + (newest.size if newest is not None else 0)


def would_change(state: RunAndDisk, given: DiskMeasured) -> bool:
    """Return whether this measurement leads to an event. Others need not become an input."""
    if state.run.phase in TERMINAL:
        return False
    if state.disk.low is None:
        return given.free < given.floor
    return given.free >= given.floor * (1 + _MARGIN)


def is_pausing(state: RunAndDisk) -> bool:
    """Return whether low space is the only reason why the run pauses or is about to."""
    low, pause = state.disk.low, state.run.pause
    return low is not None and pause is not None and pause.seq == low.seq
