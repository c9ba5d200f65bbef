"""The sentences for cycles of pruning, masks and compaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tolariad.core.pruning import mask_words as mk
from tolariad.core.pruning import words as pr
from tolariad.core.pruning.phase import PruningPhase
from tolariad.core.pruning.units import count_of
from tolariad.core.pruning.verdict import PruningDecision, WindowAction, loss_by_accuracy
from tolariad.core.text.giver_sentences import Sentences
from tolariad.core.text.phrases import because, counted, size

_DECIDED: Final = {
    PruningDecision.GO: "may be masked",
    PruningDecision.CONDITIONAL_GO: "may be masked, half the budget",
    PruningDecision.NO_GO: "may not be masked",
}


def _begun(e: pr.PruneCycleBegun) -> str:
    what = (
        "to see what could be pruned"
        if e.phase is PruningPhase.VALIDATION_ONLY
        else f"to prune up to {100.0 * e.share:.3g} % of the parameters"
    )
    return f"Cycle {e.cycle} of pruning began with checkpoint {e.checkpoint} of step {e.step}, {what}."


def _analyzed(e: pr.PruneAnalyzed) -> str:
    found = f"{_pruned(e)} {_DECIDED[e.decision]}" if e.units else "nothing was found to mask"
    measured = "" if e.correlation is None else f", correlation {e.correlation:.2f}"
    reasons = " ".join(" ".join(e.reasons).split()).rstrip(".")
    why = f" {reasons}." if reasons else ""
    return f"Cycle {e.cycle} took {e.seconds:.2g} s: {found}{measured}.{why}"


def _pruned(e: pr.PruneAnalyzed | mk.MasksApplied) -> str:
    """Return how many channels these are, and the share of the parameters that goes with them, if that was counted."""
    channels = counted(e.channels, "channel")
    if e.pruned_parameters and e.total_parameters:
        return f"{channels}, {100.0 * e.pruned_parameters / e.total_parameters:.3g} % of parameters"
    return f"{channels} of {e.total}" if e.total else channels


def _units(units: Mapping[str, tuple[int, ...]]) -> str:
    return f"{counted(count_of(units), 'unit')} in {counted(len(units), 'layer')}"


def _by(e: mk.MasksApplied | mk.ModelCompacted) -> str:
    return f" {e.by or 'Somebody'} ordered it{because(e.reason)}" if e.by or e.reason else ""


def _applied(e: mk.MasksApplied) -> str:
    watched = f" They are watched for {counted(e.grace_steps + e.window_steps, 'step')}; before them is {e.pinned}."
    return f"Masks of cycle {e.cycle} hold from step {e.applied_before_step} on: {_pruned(e)}.{watched}{_by(e)}"


def _watched(e: mk.PruneWatched) -> str:
    figures = (
        ("gradient norm", e.norm_ratio, "{:.3g} times"),
        ("speed", e.speed_ratio, "{:.3g} times"),
        ("memory in use", e.memory, "{:.0%}"),
    )
    found = ", ".join(f"{name} {form.format(value)}" for name, value, form in figures if value is not None)
    end = f"{counted(len(e.trips), 'limit')} exceeded" if e.trips else "no limit exceeded"
    return f"The masks of cycle {e.cycle} were watched to step {e.step}: {end}{f', {found}' if found else ''}."


def _passed(e: mk.MaskSetPassed) -> str:
    if e.accuracy is None or e.accuracy_before is None:
        return f"The masks of cycle {e.cycle} stay: no limit was exceeded."
    before, after, what = e.accuracy_before, e.accuracy, "accuracy"
    if e.loss_before is not None:
        before, after, what = e.loss_before, loss_by_accuracy(e.accuracy, e.loss_before), "loss"
    return f"The masks of cycle {e.cycle} stay: {what} {before:.4g} before, {after:.4g} after them."


def _rejected(e: mk.MaskSetRejected) -> str:
    if e.action is WindowAction.RELEASE:
        follows = "They are lifted."
    else:
        follows = f"The run goes back to {e.checkpoint}." if e.checkpoint else "The run goes back."
    return f"The masks of cycle {e.cycle} are rejected{because(e.why)} {follows}"


def _compacted(e: mk.ModelCompacted) -> str:
    parameters = f"{e.parameters_before} to {e.parameters} parameters"
    times = ""
    if e.step_s_before is not None and e.step_s is not None:
        times = f", a pass from {1e3 * e.step_s_before:.3g} to {1e3 * e.step_s:.3g} ms"
    sizes = f"{size(e.bytes_before)} to {size(e.bytes)}"
    what = f"{counted(e.channels, 'channel')} removed, {parameters}, {sizes}{times}"
    return f"The model is compacted from step {e.applied_before_step} on: {what}.{_by(e)}"


SENTENCES: Final[Sentences] = {
    pr.PruneDisabled: "Pruning was disabled{by}",
    pr.PruneEnabled: "Pruning follows the schedule again: it was enabled{by}",
    pr.PruneCycleBegun: _begun,
    pr.PruneAnalyzed: _analyzed,
    pr.PruneCycleFailed: "Cycle {e.cycle} of pruning failed{why}",
    pr.PruneCycleCancelled: "Cycle {e.cycle} of pruning was given up{why}",
    pr.PruneBreakerOpened: "Pruning stops after {e.failures} failed cycles in a row. The last one failed{why}",
    pr.ImportanceRemoved: "The importance of cycle {e.cycle} was removed{why}",
    mk.MasksOrdered: lambda e: f"The masks of cycle {e.cycle} are ordered: {_units(e.units)}.",
    mk.MasksApplied: _applied,
    mk.MasksAborted: "The masks of cycle {e.cycle} were not applied{why}",
    mk.PruneWatched: _watched,
    mk.MaskSetPassed: _passed,
    mk.MaskSetRejected: _rejected,
    mk.MasksReleaseOrdered: "The masks of cycle {e.cycle} are to be lifted{why}",
    mk.MasksReleased: "The masks of cycle {e.cycle} are lifted from step {e.applied_before_step} on.",
    mk.MasksReleaseAborted: "The masks of cycle {e.cycle} could not be lifted{why}",
    mk.CompactionOrdered: lambda e: f"The removal of all masked units was ordered: {_units(e.units)}.",
    mk.ModelCompacted: _compacted,
    mk.CompactionAborted: "The masked units were not removed{why}",
}
