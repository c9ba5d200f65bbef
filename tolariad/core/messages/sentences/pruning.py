"""The sentences for cycles of pruning, masks and compaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tolariad.core import messages as m
from tolariad.core.calc.pruning.phase import PruningPhase
from tolariad.core.calc.pruning.units import count_of
from tolariad.core.calc.pruning.verdict import PruningDecision, WindowAction, loss_by_accuracy
from tolariad.core.calc.text.phrases import because, counted, size
from tolariad.core.messages.sentences.givers import OrderSentences, OrderWords, Sentences

_DECIDED: Final = {
    PruningDecision.GO: "may be masked",
    PruningDecision.CONDITIONAL_GO: "may be masked, half the budget",
    PruningDecision.NO_GO: "may not be masked",
}


def _begun(e: m.PruneCycleBegun) -> str:
    what = (
        "to see what could be pruned"
        if e.phase is PruningPhase.VALIDATION_ONLY
        else f"to prune up to {100.0 * e.share:.3g} % of the parameters"
    )
    return f"Cycle {e.cycle} of pruning began with checkpoint {e.checkpoint} of step {e.step}, {what}."


def _analyzed(e: m.PruneAnalyzed) -> str:
    found = f"{_pruned(e, e.pruned_parameters)} {_DECIDED[e.decision]}" if e.units else "nothing was found to mask"
    measured = "" if e.correlation is None else f", correlation {e.correlation:.2f}"
    reasons = " ".join(" ".join(e.reasons).split()).rstrip(".")
    why = f" {reasons}." if reasons else ""
    return f"Cycle {e.cycle} took {e.seconds:.2g} s: {found}{measured}.{why}"


def _pruned(e: m.PruneAnalyzed | m.MaskUnits, parameters: int) -> str:
    """Return how many channels these are, and the share of the parameters that goes with them, if that was counted."""
    channels = counted(e.channels, "channel")
    if parameters and e.total_parameters:
        return f"{channels}, {100.0 * parameters / e.total_parameters:.3g} % of parameters"
    return f"{channels} of {e.total}" if e.total else channels


def _units(units: Mapping[str, tuple[int, ...]]) -> str:
    return f"{counted(count_of(units), 'unit')} in {counted(len(units), 'layer')}"


def _by(e: m.OrderActed) -> str:
    return f" {e.by or 'Somebody'} ordered it{because(e.reason)}" if e.by or e.reason else ""


def _masked(e: m.OrderActed) -> str:
    order: Any = e.order
    masking, steps = e.outcome_as(m.Masking), counted(order.grace_steps + order.window_steps, "step")
    watched = f" They are watched for {steps}; before them is {masking.pinned}."
    pruned = _pruned(order, masking.pruned_parameters)
    return f"Masks of cycle {order.cycle} hold from step {e.applied_before_step} on: {pruned}.{watched}{_by(e)}"


def _watched(e: m.PruneWatched) -> str:
    figures = (
        ("gradient norm", e.norm_ratio, "{:.3g} times"),
        ("speed", e.speed_ratio, "{:.3g} times"),
        ("memory in use", e.memory, "{:.0%}"),
    )
    found = ", ".join(f"{name} {form.format(value)}" for name, value, form in figures if value is not None)
    end = f"{counted(len(e.trips), 'limit')} exceeded" if e.trips else "no limit exceeded"
    return f"The masks of cycle {e.cycle} were watched to step {e.step}: {end}{f', {found}' if found else ''}."


def _passed(e: m.MaskSetPassed) -> str:
    if e.accuracy is None or e.accuracy_before is None:
        return f"The masks of cycle {e.cycle} stay: no limit was exceeded."
    before, after, what = e.accuracy_before, e.accuracy, "accuracy"
    if e.loss_before is not None:
        before, after, what = e.loss_before, loss_by_accuracy(e.accuracy, e.loss_before), "loss"
    return f"The masks of cycle {e.cycle} stay: {what} {before:.4g} before, {after:.4g} after them."


def _rejected(e: m.MaskSetRejected) -> str:
    if e.action is WindowAction.RELEASE:
        follows = "They are lifted."
    else:
        follows = f"The run goes back to {e.checkpoint}." if e.checkpoint else "The run goes back."
    return f"The masks of cycle {e.cycle} are rejected{because(e.why)} {follows}"


def _compacted(e: m.OrderActed) -> str:
    found = e.outcome_as(m.Compaction)
    parameters = f"{found.parameters_before} to {found.parameters} parameters"
    times = ""
    if found.step_s_before is not None and found.step_s is not None:
        times = f", a pass from {1e3 * found.step_s_before:.3g} to {1e3 * found.step_s:.3g} ms"
    sizes = f"{size(found.bytes_before)} to {size(found.bytes)}"
    what = f"{counted(found.channels, 'channel')} removed, {parameters}, {sizes}{times}"
    return f"The model is compacted from step {e.applied_before_step} on: {what}.{_by(e)}"


ORDERS: Final[OrderSentences] = {
    m.MaskUnits: OrderWords(
        given=lambda e: f"The masks of cycle {e.order.cycle} are ordered: {_units(e.order.units)}.",
        acted=_masked,
        aborted="The masks of cycle {e.order.cycle} were not applied{why}",
    ),
    m.ReleaseMasks: OrderWords(
        given="The masks of cycle {e.order.cycle} are to be lifted{why}",
        acted="The masks of cycle {e.order.cycle} are lifted from step {e.applied_before_step} on.",
        aborted="The masks of cycle {e.order.cycle} could not be lifted{why}",
    ),
    m.CompactModel: OrderWords(
        given=lambda e: f"The removal of all masked units was ordered: {_units(e.order.units)}.",
        acted=_compacted,
        aborted="The masked units were not removed{why}",
    ),
}
SENTENCES: Final[Sentences] = {
    m.PruneDisabled: "Pruning was disabled{by}",
    m.PruneEnabled: "Pruning follows the schedule again: it was enabled{by}",
    m.PruneCycleBegun: _begun,
    m.PruneAnalyzed: _analyzed,
    m.PruneCycleFailed: "Cycle {e.cycle} of pruning failed{why}",
    m.PruneCycleCancelled: "Cycle {e.cycle} of pruning was given up{why}",
    m.PruneBreakerOpened: "Pruning stops after {e.failures} failed cycles in a row. The last one failed{why}",
    m.ImportanceRemoved: "The importance of cycle {e.cycle} was removed{why}",
    m.PruneWatched: _watched,
    m.MaskSetPassed: _passed,
    m.MaskSetRejected: _rejected,
}
