"""Space on the journal's disk: slice, and what a run does when it runs out and when it is back.

Invariants: the run pauses while there is still room for everything that ends it in order (the floor is three segments and
a checkpoint, so the last spare segment is not begun); what paused for want of space goes on by itself, unless somebody
ordered a pause meanwhile; below the floor no checkpoint is begun and no telemetry recorded. It must not know: files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from tolariad.core import run as run_rules
from tolariad.core.decision import NOTHING, Decision
from tolariad.core.inputs import DiskMeasured
from tolariad.core.run import TERMINAL, TRAINING, Phase
from tolariad.core.vocabulary import control, disk, run
from tolariad.core.vocabulary.base import ApplyTable, Cause, Event

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


def decide_measured(state: RunState, given: DiskMeasured) -> Decision:
    """Pause for want of space, or go on where that was the reason."""
    if not would_change(state, given):
        return NOTHING
    low = state.disk.low
    if low is None:
        return Decision((disk.DiskLow(free=given.free, floor=given.floor),)) + _pause(state)
    recovered = disk.DiskRecovered(free=given.free, floor=given.floor, cause=low.seq, root=low.root)
    return Decision((recovered,)) + _go_on(state)


def decide_at_start(state: RunState, given: DiskMeasured) -> Decision:
    """As `decide_measured`, before the first trainer of a daemon; a run that begins again on a low disk pauses, too."""
    goes_on = state.run.phase in TRAINING and state.run.pause is None
    if state.disk.low is not None and goes_on and given.free < given.floor:
        return Decision((disk.DiskLow(free=given.free, floor=given.floor),)) + _pause(state)
    return decide_measured(state, given)


def _pause(state: RunState) -> Decision:
    if state.run.pause is not None or state.run.phase not in TRAINING:
        return NOTHING
    if state.trainer.alive:
        return Decision((), (control.Hold(),))
    return Decision((run.RunPaused(applied_before_step=state.progress.step + 1),))


def is_pausing(state: RunState) -> bool:
    """Whether want of space, and nothing else, is why the run stands or is about to."""
    low, pause = state.disk.low, state.run.pause
    return low is not None and pause is not None and pause.seq == low.seq


def _go_on(state: RunState) -> Decision:
    if not is_pausing(state) or state.run.phase not in (*TRAINING, Phase.PAUSED):
        return NOTHING
    resumed: tuple[Event, ...] = (run.RunResumed(origin=run.Origin.DISK),)
    if state.trainer.alive:
        return Decision(resumed, (control.Release(),))
    if state.run.phase is Phase.PAUSED:
        return Decision(resumed, (run_rules.spawn(state),))
    return Decision(resumed)  # the next trainer is on its way already
