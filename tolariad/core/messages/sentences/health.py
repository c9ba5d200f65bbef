"""The sentences for findings, emergencies, conservative mode, budgets and quarantine."""

from __future__ import annotations

from math import isfinite
from typing import Final

from tolariad.core import messages as m
from tolariad.core.calc.detection.rules import CALLS_FOR, NO_LIMIT, Action, Signal
from tolariad.core.calc.text.phrases import because, counted
from tolariad.core.messages.sentences.givers import Sentences, by

_SIGNALS: Final = {
    Signal.LOSS: "The loss",
    Signal.GRAD_NORM: "The gradient norm",
    Signal.STEP_TIME: "The time of a step",
}


def _exceeded(e: m.BudgetExceeded) -> str:
    times = "" if e.times == 1 else f", {e.times} times"
    return f"Budget {e.budget} was exceeded{times}: {e.value:.3g} {e.unit}, its limit is {e.limit:.6g}."


_FOLLOWS: Final = {
    m.Follows.RECORD: " It is only recorded.",
    m.Follows.ROLLBACK: " The run goes back.",
    m.Follows.HALT: " The run halts.",
}


def _emergency(e: m.EmergencyRaised) -> str:
    follows = _FOLLOWS[e.follows] if e.follows is not None else ""
    return f"Emergency of level {e.level.value}{because(e.why) if e.actor is None else by(e)}{follows}"


def _careful_no_more(e: m.ConservativeModeLeft) -> str:
    return f"Conservative mode is off after {counted(e.healthy_epochs, 'healthy epoch')} and {e.seconds:.0f} s."


def _unstable(e: m.InstabilityDetected) -> str:
    action = _action(e)
    if e.signal is Signal.ACCURACY:
        average = f"an average of {100 * e.baseline:.4g} %"
        return f"The accuracy fell from {average} to {100 * e.value:.4g} % after epoch {e.epoch}.{action}"
    what = _SIGNALS.get(e.signal, e.signal.value)
    if not isfinite(e.value):
        return f"{what} is {e.value:.6g} at step {e.step}.{action}"
    usual = "" if e.limit >= NO_LIMIT else f" (usual: {e.baseline:.6g})"
    return f"{what} rose to {e.value:.6g} at step {e.step}{usual}.{action}"


def _action(e: m.InstabilityDetected) -> str:
    """Return what follows, as far as this event tells it: another one tells that a batch is skipped."""
    if e.level is not None:
        return f" This is an emergency of level {e.level.value}."
    if e.insured:
        return ""
    return "" if CALLS_FOR[e.finding] is Action.SKIP and not e.goes_on else " No action was taken."


def _quarantined(e: m.QuarantineAdded) -> str:
    held = e.batches
    if held is None:
        what = f"checkpoint {e.checkpoint}" if e.checkpoint else f"seed {e.seed}"
    elif held.first == held.last:
        what = f"batch {held.first} of epoch {held.epoch}"
    else:
        what = f"batches {held.first} to {held.last} of epoch {held.epoch}"
    return f"Put {what} into quarantine{because(e.why) if e.actor is None else by(e)}"


def _measured(e: m.BudgetsMeasured) -> str:
    if not e.ranks:
        return f"Measured {counted(len(e.tallies), 'budget')} in epoch {e.epoch}."
    slow = m.slowest_rank(e.ranks)
    waits = f": the others wait for rank {slow.rank} in {slow.share:.0%} of a step" if slow is not None else ""
    return f"Timed {counted(len(e.ranks), 'rank')} in epoch {e.epoch}{waits}."


SENTENCES: Final[Sentences] = {
    m.BudgetsMeasured: _measured,
    m.BudgetExceeded: _exceeded,
    m.MemoryPressed: "Memory is short: {e.budget} holds {e.percent:.3g} %, over its share of {e.limit:.3g} %.",
    m.MemoryRelieved: "Every part of the run is within its share of memory again.",
    m.EmergencyRaised: _emergency,
    m.EmergencyCleared: "The emergency is over{why}",
    m.ConservativeModeEntered: "Conservative mode is on{why}",
    m.ConservativeModeLeft: _careful_no_more,
    m.InstabilityDetected: _unstable,
    m.QuarantineAdded: _quarantined,
    m.QuarantineRemoved: "Entry {e.name} left quarantine{by}",
}
