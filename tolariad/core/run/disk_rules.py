"""What follows if the journal's disk has too little space, and when there is space again."""

from __future__ import annotations

from typing import Protocol

from tolariad.core.base import Cause
from tolariad.core.control import words as control
from tolariad.core.decision import Decision
from tolariad.core.engine import At, Numbered
from tolariad.core.inputs import DiskMeasured, Opened
from tolariad.core.run import disk_words as disk
from tolariad.core.run import words as run
from tolariad.core.run.ask import pause_reached
from tolariad.core.run.disk_ask import is_pausing, would_change
from tolariad.core.run.disk_slice import HasDisk
from tolariad.core.run.slice import TRAINING, HasRun, Phase
from tolariad.core.steps.slice import HasProgress
from tolariad.core.trainer.slice import HasTrainer


class Reads(Numbered, HasRun, HasProgress, HasTrainer, HasDisk, Protocol):
    """The slices that the rules of the disk read."""


def measured(state: Reads, given: DiskMeasured, _: At[Reads]) -> Decision | None:
    """Record a measurement that crosses the limit."""
    if not would_change(state, given):
        return None
    low = state.disk.low
    if low is None:
        return Decision((disk.DiskLow(free=given.free, floor=given.floor),))
    return Decision((disk.DiskRecovered(free=given.free, floor=given.floor, cause=low.seq, root=low.root),))


def measured_at_start(state: Reads, given: Opened, at: At[Reads]) -> Decision | None:
    """Pause a run that would begin training on a low disk before it has a trainer, even if the disk was low before."""
    if given.disk is None:
        return None
    is_low = given.disk.free < given.disk.floor
    if is_low and state.run.phase in TRAINING and state.run.pause is None:
        # One block, so that no trainer is started between the two events.
        event = disk.DiskLow(free=given.disk.free, floor=given.disk.floor)
        return Decision((event, pause_reached(state, Cause(state.seq + 1, 0))))
    return measured(state, given.disk, at)


def pause(state: Reads, _: disk.DiskLow, at: At[Reads]) -> Decision | None:
    """Pause at the next boundary, unless a pause is ordered already."""
    if at.was.run.pause is not None or state.run.phase not in TRAINING:
        return None
    return Decision((), (control.Hold(),)) if state.trainer.alive else Decision((pause_reached(state),))


def go_on(_: Reads, __: disk.DiskRecovered, at: At[Reads]) -> Decision | None:
    """Continue if low space was the only reason for the pause."""
    if not is_pausing(at.was) or at.was.run.phase not in (*TRAINING, Phase.PAUSED):
        return None
    return Decision((run.RunResumed(origin=run.Origin.DISK),))
