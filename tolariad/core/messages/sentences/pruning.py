"""The sentences for cycles of pruning, masks and compaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tolariad.core import messages as m
from tolariad.core.calc.pruning.phase import PruningPhase
from tolariad.core.calc.pruning.units import count_of
from tolariad.core.calc.pruning.verdict import PruningDecision, WindowAction, loss_by_accuracy
from tolariad.core.calc.text.phrases import because, counted, size
from tolariad.core.messages.sentences.givers import Sentences

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
    found = f"{_pruned(e)} {_DECIDED[e.decision]}" if e.units else "nothing was found to mask"
    measured = "" if e.correlation is None else f", correlation {e.correlation:.2f}"
    reasons = " ".join(" ".join(e.reasons).split()).rstrip(".")
    why = f" {reasons}." if reasons else ""
    return f"Cycle {e.cycle} took {e.seconds:.2g} s: {found}{measured}.{why}"


def _pruned(e: m.PruneAnalyzed | m.MasksApplied) -> str:
    """Return how many channels these are, and the share of the parameters that goes with them, if that was counted."""
    channels = counted(e.channels, "channel")
    if e.pruned_parameters and e.total_parameters:
        return f"{channels}, {100.0 * e.pruned_parameters / e.total_parameters:.3g} % of parameters"
    return f"{channels} of {e.total}" if e.total else channels


def _units(units: Mapping[str, tuple[int, ...]]) -> str:
    return f"{counted(count_of(units), 'unit')} in {counted(len(units), 'layer')}"


def _by(e: m.MasksApplied | m.ModelCompacted) -> str:
    return f" {e.by or 'Somebody'} ordered it{because(e.reason)}" if e.by or e.reason else ""


def _applied(e: m.MasksApplied) -> str:
    watched = f" They are watched for {counted(e.grace_steps + e.window_steps, 'step')}; before them is {e.pinned}."
    return f"Masks of cycle {e.cycle} hold from step {e.applied_before_step} on: {_pruned(e)}.{watched}{_by(e)}"


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


def _compacted(e: m.ModelCompacted) -> str:
    parameters = f"{e.parameters_before} to {e.parameters} parameters"
    times = ""
    if e.step_s_before is not None and e.step_s is not None:
        times = f", a pass from {1e3 * e.step_s_before:.3g} to {1e3 * e.step_s:.3g} ms"
    sizes = f"{size(e.bytes_before)} to {size(e.bytes)}"
    what = f"{counted(e.channels, 'channel')} removed, {parameters}, {sizes}{times}"
    return f"The model is compacted from step {e.applied_before_step} on: {what}.{_by(e)}"


SENTENCES: Final[Sentences] = {
    m.PruneDisabled: "Pruning was disabled{by}",
    m.PruneEnabled: "Pruning follows the schedule again: it was enabled{by}",
    m.PruneCycleBegun: _begun,
    m.PruneAnalyzed: _analyzed,
    m.PruneCycleFailed: "Cycle {e.cycle} of pruning failed{why}",
    m.PruneCycleCancelled: "Cycle {e.cycle} of pruning was given up{why}",
    m.PruneBreakerOpened: "Pruning stops after {e.failures} failed cycles in a row. The last one failed{why}",
    m.ImportanceRemoved: "The importance of cycle {e.cycle} was removed{why}",
    m.MasksOrdered: lambda e: f"The masks of cycle {e.cycle} are ordered: {_units(e.units)}.",
    m.MasksApplied: _applied,
    m.MasksAborted: "The masks of cycle {e.cycle} were not applied{why}",
    m.PruneWatched: _watched,
    m.MaskSetPassed: _passed,
    m.MaskSetRejected: _rejected,
    m.MasksReleaseOrdered: "The masks of cycle {e.cycle} are to be lifted{why}",
    m.MasksReleased: "The masks of cycle {e.cycle} are lifted from step {e.applied_before_step} on.",
    m.MasksReleaseAborted: "The masks of cycle {e.cycle} could not be lifted{why}",
    m.CompactionOrdered: lambda e: f"The removal of all masked units was ordered: {_units(e.units)}.",
    m.ModelCompacted: _compacted,
    m.CompactionAborted: "The masked units were not removed{why}",
}
