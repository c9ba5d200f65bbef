"""Describe an event in one plain sentence: one function for each type of event.

Promises: pure. A sentence can be understood without the events around it. It may contain any text that an event
contains, so it must be escaped before a terminal shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any, Final

from tolariad.core.base import Event
from tolariad.core.control import words as cv
from tolariad.core.detection.rules import NO_LIMIT, Signal
from tolariad.core.health import quarantine_words as qn
from tolariad.core.health import words as hv
from tolariad.core.rates import words as lr
from tolariad.core.rollback import words as rb
from tolariad.core.run import words as run
from tolariad.core.steps import words as st
from tolariad.core.trainer import words as tr

_SIGNALS: Final = {
    Signal.LOSS: "The loss",
    Signal.GRAD_NORM: "The gradient norm",
    Signal.STEP_TIME: "The time of a step",
}


def sentence(event: Event) -> str:
    """Return the event in words; "" for a type that has no sentence."""
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
            return f"Made no update from {batch}: fp16 gradients overflowed. The loss scale is lowered."
        case st.SkipReason.SPIKE:
            return f"Skipped {batch}: {figures}, far above the usual values."
        case st.SkipReason.NON_FINITE:
            return f"Skipped {batch}: {figures}."


def _rolled_back(e: rb.RolledBack) -> str:
    to = f"step {e.step} ({e.checkpoint})"
    late = f" These participants had not gone back in time: {', '.join(e.late)}." if e.late else ""
    if not e.from_step:
        # An older version did not record it, or the run was at its beginning.
        return f"Rolled back to {to}{_because(e.why)}{late}"
    abandoned = _counted(max(0, e.from_step - e.step), "step")
    return f"Rolled back from step {e.from_step} to {to} and abandoned {abandoned}{_because(e.why)}{late}"


def _escalated(e: rb.RollbackEscalated) -> str:
    return f"The rollback goes to an older checkpoint, step {e.to_step} ({e.checkpoint}){_because(e.why)}"


def _aborted(e: rb.RollbackAborted) -> str:
    return f"Rollback {e.rollback} was given up{_because(e.why)}"


def _backed_off(e: rb.RatesBackedOff) -> str:
    return f"The learning rates of {_counted(e.groups, 'group')} were multiplied by {e.factor:.6g} after the rollback."


def _violated(e: lr.LrViolationDetected) -> str:
    group = f" of {e.group}" if e.group else ""
    if e.what == lr.DIGEST_DIFFERS:
        return f"Update {e.step} used other learning rates than those in the journal."
    if e.what.startswith(lr.SCHEDULER_STEPPED):
        stepped, place = f"A{e.what[1:]}", f", in {e.where}" if e.where else ""
        do = "Remove it and set `learning_rate.policy` (docs/learning-rate.md)"
        return f"{stepped}{place}. It has no effect: tolariad sets the learning rates. {do}."
    values = "" if e.expected is None or e.found is None else f" (found {e.found:.6g}, reset to {e.expected:.6g})"
    where = f", in {e.where}" if e.where else ""
    return f"Corrected the learning rate{group} before update {e.step}{values}: {e.what}{where}."


def _careful(e: hv.ConservativeModeEntered) -> str:
    return f"Conservative mode is on{_because(e.why)}"


def _careful_no_more(e: hv.ConservativeModeLeft) -> str:
    return f"Conservative mode is off after {_counted(e.healthy_epochs, 'healthy epoch')} and {e.seconds:.0f} s."


def _frozen(e: run.RunFrozen) -> str:
    return f"The run halted{_because(e.why)} Use `tolaria resume`, `rollback` or `stop`."


def _unstable(e: hv.InstabilityDetected) -> str:
    action = "No action was taken." if e.level is None else f"This is an emergency of level {e.level.value}."
    if e.signal is Signal.ACCURACY:
        average = f"an average of {100 * e.baseline:.4g} %"
        return f"The accuracy fell from {average} to {100 * e.value:.4g} % after epoch {e.epoch}. {action}"
    what = _SIGNALS.get(e.signal, e.signal.value)
    if not isfinite(e.value):
        return f"{what} is {e.value:.6g} at step {e.step}. {action}"
    usual = "" if e.limit >= NO_LIMIT else f" (usual: {e.baseline:.6g})"
    return f"{what} rose to {e.value:.6g} at step {e.step}{usual}. {action}"


def _quarantined(e: qn.QuarantineAdded) -> str:
    held = e.batches
    if held is None:
        what = f"checkpoint {e.checkpoint}" if e.checkpoint else f"seed {e.seed}"
    elif held.first == held.last:
        what = f"batch {held.first} of epoch {held.epoch}"
    else:
        what = f"batches {held.first} to {held.last} of epoch {held.epoch}"
    return f"Put {what} into quarantine{_because(e.why)}"


def _end_ordered(e: cv.EndOrdered) -> str:
    end, former = _end(e.epochs, e.steps), _end(e.former_epochs, e.former_steps)
    words = f"The training ends after {end}{f' instead of {former}' if former != end else ''}."
    return f"{words} {e.rates.rstrip('.')}." if e.rates else words


def _end(epochs: int | None, steps: int | None) -> str:
    return f"epoch {epochs}" if steps is None else f"step {steps}"


def _built(e: tr.ExecutionContextRecorded) -> str:
    other = f" Other data were accepted: {e.other_data.rstrip('.')}." if e.other_data else ""
    return f"Trainer {e.incarnation} is built.{other}"


def _disk_low(e: run.DiskLow) -> str:
    free, floor = _megabytes(e.free), _megabytes(e.floor)
    return f"The disk is low: {free} are free, {floor} are needed. The run pauses until there is space."


def _disk_recovered(e: run.DiskRecovered) -> str:
    return f"The disk has space again: {_megabytes(e.free)} are free. The run goes on."


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.0f} MB"


def _because(why: str) -> str:
    """Return the reason, and the end of the sentence."""
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
    hv.ConservativeModeEntered: _careful,
    hv.ConservativeModeLeft: _careful_no_more,
    run.RunFrozen: _frozen,
    hv.InstabilityDetected: _unstable,
    qn.QuarantineAdded: _quarantined,
    cv.EndOrdered: _end_ordered,
    tr.ExecutionContextRecorded: _built,
    run.DiskLow: _disk_low,
    run.DiskRecovered: _disk_recovered,
}
