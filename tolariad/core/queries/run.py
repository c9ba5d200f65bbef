"""Whether an update may begin, whether the disk has space, and how the run pauses or goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.settings.task_defaults import GIVEN

FLOOR_SEGMENTS: Final = 3
# The journal's plan: the first segment has this length, each later one four times as many bytes (a test compares them).
FIRST_SEGMENT_BYTES: Final = 1 << 18
_DOUBLINGS_MAX: Final = 40
# This share above the floor must be free before the run goes on. Otherwise it would pause again at once.
_MARGIN: Final = 1 / 8


class RunAndCheckpoints(st.HasRun, st.HasCheckpoints, st.HasBoundary, Protocol):
    """The slices that the gate depends on."""


class RunAndTrainer(st.HasRun, st.HasTrainer, Protocol):
    """The slices that a stop depends on."""


def gate_open(state: RunAndCheckpoints) -> bool:
    """Return whether an update may begin: not before the first checkpoint is committed, never while frozen or ended.

    Nor while a question is open: the orders of its answer act before the next update, also if the trainer died while it
    was open.

    If all committed ones have become unusable, training goes on: the next checkpoint is already ordered.
    """
    return (
        not state.run.is_halted
        and state.run.phase is not st.Phase.ROLLING_BACK
        and state.boundary.asked is None
        and bool(state.checkpoints.catalogue or state.checkpoints.removed)
    )


def stops_at_boundary(state: RunAndTrainer, mode: m.StopMode) -> bool:
    """Return whether a stop waits for a boundary and a last checkpoint. `state`: the one in which it is ordered."""
    living = state.trainer.alive and state.trainer.began
    return living and mode is m.StopMode.GRACEFUL and state.run.phase is not st.Phase.FROZEN


def spawn_trainer(state: st.HasTrainer, *, delay_s: float = 0.0) -> m.SpawnTrainer:
    """Return the order for the next trainer."""
    return m.SpawnTrainer(incarnation=state.trainer.incarnation + 1, delay_s=delay_s)


def pause_reached(state: st.HasProgress, pause: m.Cause | None = None, step: int | None = None) -> m.RunPaused:
    """Return the event that training stands.

    `pause`: the order, if that is not the event reacted to; `step`: the place, if not the last step.
    """
    at = state.progress.step if step is None else step
    return m.RunPaused(applied_before_step=at + 1).caused_by(pause)


# -- space on the journal's disk ---------------------------------------------------------------------------------------


def reserve_bytes(segment_no: int, segment_bytes: int) -> int:
    """Return the bytes that the journal needs: three segments as long as the one after number `segment_no`.

    `segment_bytes` is the greatest length. A small run has short segments, so it runs on a small disk.
    """
    following = min(segment_bytes, FIRST_SEGMENT_BYTES << min(2 * segment_no, _DOUBLINGS_MAX))
    return FLOOR_SEGMENTS * following


def floor_bytes(state: st.HasCheckpoints, reserve: int) -> int:
    """Return the bytes that must be free: the journal's `reserve`, and a checkpoint.

    It is as large as the newest one, or as a later one for which there was no space.
    """
    newest = state.checkpoints.newest
    return reserve + max(newest.size if newest is not None else 0, state.checkpoints.needs)


def disk_would_change(state: st.HasRun, given: m.DiskMeasured) -> bool:
    """Return whether this measurement leads to an event. Others need not become an input."""
    if state.run.phase in st.TERMINAL:
        return False
    if state.disk.low is None:
        return given.free < given.floor
    return given.free >= given.floor * (1 + _MARGIN)


def is_pausing(state: st.HasRun) -> bool:
    """Return whether low space is the only reason why the run pauses or is about to."""
    low, pause = state.disk.low, state.run.pause
    return low is not None and pause is not None and pause.seq == low.seq


def is_program(state: st.HasRun) -> bool:
    """Return whether a program trains: by `Tolaria.train`, or in a loop of its own. It has no command line."""
    return state.run.task == GIVEN


_WAYS: Final[Mapping[m.FailureKind, tuple[str, str]]] = {
    m.FailureKind.TRAINER: (
        "`tolaria why RUN death` shows the exceptions; correct their cause and start with --retry",
        "correct the cause and start the program again",
    ),
    m.FailureKind.CONFIGURATION: ("correct it and start with --retry", "correct it and start the program again"),
    m.FailureKind.DIVERGED: (
        "--retry goes on with the difference, and later ones are then only recorded",
        (
            "start the program again to go on with the difference; later ones are then only recorded. In a loop of "
            "your own: `enumerate(run.batches())` begins at 0 after a resume, and run.batch is the batch's index in "
            "its epoch; what else the loop counts or keeps is saved by run.keep(). The order of a set of strings is "
            "another one in each process: sort it"
        ),
    ),
    m.FailureKind.CHECKPOINT: (
        "`tolaria checkpoints RUN --verify` checks them; --retry tries again",
        "start the program again to try once more; `tolaria checkpoints RUN --verify` checks them",
    ),
    m.FailureKind.STORAGE: ("make space and start with --retry", "make space and start the program again"),
    m.FailureKind.DATA: (
        "give it its former data and start with --retry, or go on with the new ones: --accept-data",
        "give it its former data, or go on with the new ones: Tolaria(..., accept_data=True)",
    ),
    m.FailureKind.CODE: (
        "--accept-code goes on with the new code; or put it back and start with --retry",
        "Tolaria(..., accept_code=True) goes on with the new code; or put it back and start the program again",
    ),
}


def way_on(failure: m.FailureKind | None, *, in_program: bool) -> str:
    """Return what to do about a failed run, as a clause: options of `tolariad run`, or those of a program."""
    by_command, by_program = _WAYS[failure or m.FailureKind.TRAINER]
    return by_program if in_program else by_command
