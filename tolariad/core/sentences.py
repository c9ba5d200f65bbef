"""What an event says, as one plain sentence: one function for each type of event.

Promises: pure; a sentence stands by itself, without the events around it; it may hold whatever text an event holds, so a
terminal shows it only through an escape. It must not know: who reads it, how wide their screen is, which events are shown.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any, Final

from tolariad.core.control import words as cv
from tolariad.core.detection import NO_LIMIT, Signal
from tolariad.core.health import conservative_words as sv
from tolariad.core.health import detection_words as det
from tolariad.core.health import quarantine_words as qn
from tolariad.core.rates import words as lr
from tolariad.core.rollback import words as rb
from tolariad.core.run import disk_words as disk
from tolariad.core.run import words as run
from tolariad.core.steps import words as st
from tolariad.core.vocabulary import Event

_SIGNALS: Final = {
    Signal.LOSS: "The loss",
    Signal.GRAD_NORM: "The gradient norm",
    Signal.STEP_TIME: "The time of a step",
}


def sentence(event: Event) -> str:
    """The event in words; "" for a type that has no sentence yet."""
    say = SENTENCES.get(type(event))
    return say(event) if say is not None else ""


def _skipped(e: st.StepSkipped) -> str:
    batch = f"batch {e.batch} of epoch {e.epoch}"
    norm = "" if e.grad_norm < 0 else f", its gradient norm {e.grad_norm:.6g}"
    figures = f"its loss is {e.loss:.6g}{norm}"
    match e.reason:
        case st.SkipReason.QUARANTINED:
            return f"Skipped {batch}: it is in quarantine."
        case st.SkipReason.OVERFLOW:
            return f"Made no update from {batch}: fp16 gradients overflowed, and the loss scale goes down."
        case st.SkipReason.SPIKE:
            return f"Skipped {batch}: {figures}, far above what was usual."
        case st.SkipReason.NON_FINITE:
            return f"Skipped {batch}: {figures}."


def _rolled_back(e: rb.RolledBack) -> str:
    to = f"step {e.step} ({e.checkpoint})"
    if not e.from_step:
        # An older version did not record it; or the run stood at its beginning.
        return f"Went back to {to}{_because(e.why)}"
    given_up = _counted(max(0, e.from_step - e.step), "step")
    return f"Went back from step {e.from_step} to {to} and gave up {given_up}{_because(e.why)}"


def _escalated(e: rb.RollbackEscalated) -> str:
    return f"The rollback goes to an older place, step {e.to_step} ({e.checkpoint}){_because(e.why)}"


def _aborted(e: rb.RollbackAborted) -> str:
    return f"Rollback {e.rollback} was given up, nothing has changed{_because(e.why)}"


def _backed_off(e: rb.RatesBackedOff) -> str:
    return f"Learning rates of {_counted(e.groups, 'group')} are multiplied by {e.factor:.6g} after the rollback."


def _violated(e: lr.LrViolationDetected) -> str:
    group = f" of {e.group}" if e.group else ""
    if e.what == lr.DIGEST_DIFFERS:
        return f"Update {e.step} did not use the learning rates that the journal leads to."
    values = "" if e.expected is None or e.found is None else f" (found {e.found:.6g}, put back to {e.expected:.6g})"
    where = f", in {e.where}" if e.where else ""
    return f"Put the learning rate{group} right before update {e.step}{values}: {e.what}{where}."


def _careful(e: sv.ConservativeModeEntered) -> str:
    return f"Conservative mode is on{_because(e.why)}"


def _careful_no_more(e: sv.ConservativeModeLeft) -> str:
    return f"Conservative mode is off after {_counted(e.healthy_epochs, 'healthy epoch')}, {e.seconds:.0f} s."


def _frozen(e: run.RunFrozen) -> str:
    return f"The run halted{_because(e.why)} `tolaria resume`, `rollback` or `stop` says how it goes on."


def _unstable(e: det.InstabilityDetected) -> str:
    done = "nothing was done" if e.level is None else f"this is an emergency, {e.level.value}"
    if e.signal is Signal.ACCURACY:
        from_ = f" from an average of {100 * e.baseline:.4g} %"
        return f"The accuracy fell{from_} to {100 * e.value:.4g} % after epoch {e.epoch}; {done}."
    what = _SIGNALS.get(e.signal, e.signal.value)
    if not isfinite(e.value):
        return f"{what} is {e.value:.6g} at step {e.step}; {done}."
    usual = "" if e.limit >= NO_LIMIT else f", where {e.baseline:.6g} was usual"
    return f"{what} rose to {e.value:.6g} at step {e.step}{usual}; {done}."


def _quarantined(e: qn.QuarantineAdded) -> str:
    held = e.batches
    if held is None:
        what = f"Checkpoint {e.checkpoint} is" if e.checkpoint else f"Seed {e.seed} is"
    elif held.first == held.last:
        what = f"Batch {held.first} of epoch {held.epoch} is"
    else:
        what = f"Batches {held.first} to {held.last} of epoch {held.epoch} are"
    return f"{what} in quarantine from now on{_because(e.why)}"


def _end_ordered(e: cv.EndOrdered) -> str:
    end, former = _end(e.epochs, e.steps), _end(e.former_epochs, e.former_steps)
    words = f"The training ends with {end}{f', before it was {former}' if former != end else ''}."
    return f"{words} {e.rates.rstrip('.')}." if e.rates else words


def _end(epochs: int | None, steps: int | None) -> str:
    return f"epoch {epochs}" if steps is None else f"step {steps}"


def _disk_low(e: disk.DiskLow) -> str:
    return f"The disk is low: {_megabytes(e.free)} are free, {_megabytes(e.floor)} are needed. The run pauses until there is space."


def _disk_recovered(e: disk.DiskRecovered) -> str:
    return f"The disk has space again: {_megabytes(e.free)} are free. The run goes on."


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.0f} MB"


def _because(why: str) -> str:
    """The reason, and the sentence's end."""
    return f": {why.rstrip('.')}." if why else "."


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


SENTENCES: Final[dict[type[Event], Callable[[Any], str]]] = {
    st.StepSkipped: _skipped,
    rb.RolledBack: _rolled_back,
    rb.RollbackEscalated: _escalated,
    rb.RollbackAborted: _aborted,
    rb.RatesBackedOff: _backed_off,
    lr.LrViolationDetected: _violated,
    sv.ConservativeModeEntered: _careful,
    sv.ConservativeModeLeft: _careful_no_more,
    run.RunFrozen: _frozen,
    det.InstabilityDetected: _unstable,
    qn.QuarantineAdded: _quarantined,
    cv.EndOrdered: _end_ordered,
    disk.DiskLow: _disk_low,
    disk.DiskRecovered: _disk_recovered,
}
