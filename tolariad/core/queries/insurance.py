"""Questions about the autopilot: what it keeps as a way back, in words, and where a comparison is still possible.

Promises: each answer is a function of the folded state.
"""

from __future__ import annotations

from math import isfinite
from typing import Protocol

from tolariad.core import state as st
from tolariad.core.calc.detection.place import Batch, earlier, later
from tolariad.core.queries.run import is_program
from tolariad.core.queries.run_limit import last_epoch, last_step


class LastHealthy(st.HasRun, st.HasCheckpoints, st.HasInsurance, Protocol):
    """The slices that tell which checkpoint of a halted run is from before what halted it."""


def last_healthy(state: LastHealthy) -> str:
    """Return the newest checkpoint from before what halted the run: the pin, else the promoted one.

    "" if there is none, or if the run has not halted.
    """
    if not _has_halted(state):
        return ""
    held, pins = state.checkpoints, {one.checkpoint for one in state.insurance.pins}
    pinned = next((one.id for one in reversed(held.catalogue) if one.id in pins and one.is_target), "")
    return pinned or held.newest_promoted


def _has_halted(state: LastHealthy) -> bool:
    """Return whether the run stands where it halted. It may have been stopped since: its model is still that one."""
    if state.run.phase is not st.Phase.STOPPED:
        return state.run.phase is st.Phase.FROZEN
    s = state.insurance
    place = s.machine.place
    if place is None or not s.machine.given_up or s.held_on_to is not None:
        return False
    # A run that went on has no pin that is not held on to, and its values are finite.
    return bool(s.pins) or not isfinite(place.ceiling)


class WayToTheEnd(st.HasRun, st.HasProgress, st.HasInsurance, Protocol):
    """The slices that tell how far the run is from its end, in batches."""


def last_to_compare(state: WayToTheEnd, updates: int) -> Batch | None:
    """Return the batch so many updates before the end. None: the length of an epoch is not known.

    A comparison may be made up to there: if it is unclear, the present state is kept by an order that needs a boundary.
    """
    policy, step = state.insurance.policy, last_step(state)
    length = policy.epoch_batches
    if not length:
        return None
    end = last_epoch(state), length
    if step is not None:
        left = max(0, step - state.progress.step)
        end = min(end, later(max((1, 0), state.progress.place), left * policy.step_batches, length))
    return earlier(end, updates * policy.step_batches, length)


class Kept(st.HasRun, st.HasInsurance, Protocol):
    """The slices that tell which state a run keeps, and by which command another run begins there."""


def kept_in_words(state: Kept) -> str:
    """Return which state a run that has ended keeps, and the command for it, as a clause; "" if it keeps none."""
    kept = state.insurance.held_on_to
    if kept is None:
        return ""
    id_ = kept.checkpoint
    if is_program(state):
        # Only the program has its model: no command can train it.
        way = f"`tolaria export-weights RUN --id {id_} -o RUN/{id_}.safetensors` writes its weights"
    else:
        begun = f"`tolariad run RUN/config.resolved.json --from RUN@{id_} --with-optimizer --dir RUN-{id_}`"
        way = f"{begun} begins another run there"
    return f"{id_} (step {kept.step}) is kept: {kept.why}; {way}"


def autopilot_in_words(state: st.HasInsurance) -> str | None:
    """Return what the autopilot watches, tries or keeps, as a sentence without its full stop; None if nothing."""
    s = state.insurance
    kept, pin = s.held_on_to, s.pins[-1] if s.pins else None
    if kept is not None:
        why = f"{kept.checkpoint} (step {kept.step}) is kept: {kept.why}"
        return f"{why}; `tolaria rollback RUN --to {kept.checkpoint}` goes back there"
    if pin is None:
        return None
    if s.machine.trial is not None:
        return f"both ways are tried; the branch that went on is kept as {pin.checkpoint} (step {pin.step})"
    doing = "watches a rise" if s.machine.watch is not None else "has gone back from a rise"
    return f"{doing}, and keeps {pin.checkpoint} (step {pin.step}) as a way back: {pin.why}"
