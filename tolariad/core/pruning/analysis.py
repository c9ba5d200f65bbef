"""The analysis of a checkpoint: what is asked, what is answered, and the checks that an answer must pass.

Promises: pure values and pure functions. `refusal_of` accepts no answer that a correct analysis cannot give:

* one to another cycle, or about another checkpoint;
* a unit that does not exist, or is masked already, and more units than budget, floors or caps allow;
* a number that is not finite, and a decision that its own measurements contradict.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from tolariad.core.base import Copying
from tolariad.core.pruning.budget import PrunableLayer, UnitKind, choose, removable
from tolariad.core.pruning.phase import PruningPhase
from tolariad.core.pruning.schedule import channels_allowed
from tolariad.core.pruning.units import Units, fault_of
from tolariad.core.pruning.verdict import MaskMeasure, PruningDecision, judge
from tolariad.core.settings.pruning import Prune

# The units of one cycle are in events. A model of 36 000 channels gives some 5 kB.
UNITS_BYTES_MAX: Final = 256 * 1024
REASONS_MAX: Final = 32
REASON_CHARS_MAX: Final = 1_000
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
# From the decision that allows most to the one that allows nothing.
_STRICTER: Final = (PruningDecision.GO, PruningDecision.CONDITIONAL_GO, PruningDecision.NO_GO)


class AnalysisRequest(Copying, frozen=True, kw_only=True):
    """Asks for the analysis of a committed checkpoint.

    `manifest`: BLAKE3 of its manifest. `share`, `cap`: what this cycle, and all cycles, may prune; `pruned`: channels
    that are pruned already. `masked`: units that are masked in the checkpoint. `removed`: how many units of each group
    compactions took. `avoid`: units that were rejected, which are not chosen. `former`: the importance file of the
    analysis before, `output`: the one to write; both relative to the run's folder.
    """

    cycle: int
    checkpoint: str
    manifest: str
    epoch: int
    phase: PruningPhase
    share: float
    cap: float
    pruned: int = 0
    masked: Units = msgspec.field(default_factory=dict)
    removed: dict[str, int] = msgspec.field(default_factory=dict)
    avoid: Units = msgspec.field(default_factory=dict)
    former: str = ""
    output: str = ""


class AnalysedGroup(Struct, frozen=True, kw_only=True):
    """A group of units that can be pruned one by one. `width`: its units now, masked ones included."""

    name: str
    kind: UnitKind
    width: int
    channels: int


class AnalysisAnswer(Struct, frozen=True, kw_only=True):
    """The answer. `units`: those that this cycle would mask, `scores`: the importance of each.

    `masks_sha256`: hash of their masks. `plan`: the coordinates of these units in every tensor, for the trainer.
    `correlation`: Spearman's, of importance and measured change of the loss on `sampled` units. `stability`: the same
    of this and the former importance. None: not measured. `samples`: that the importance is from. `parameters`,
    `parameters_masked`: numbers of values. `refused`: modules that cannot be pruned, with the reasons. `file_bytes`: of
    the importance file. `seconds`: from start to answer, `cpu_seconds`: the process's time on a core.
    """

    cycle: int
    checkpoint: str
    decision: PruningDecision
    measured: MaskMeasure
    groups: tuple[AnalysedGroup, ...]
    reasons: tuple[str, ...] = ()
    units: Units = {}
    scores: dict[str, tuple[float, ...]] = {}
    masks_sha256: str = ""
    plan: str = ""
    estimator: str = ""
    correlation: float | None = None
    sampled: int = 0
    stability: float | None = None
    samples: int = 0
    parameters: int = 0
    parameters_masked: int = 0
    refused: tuple[str, ...] = ()
    file_bytes: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0


def layers_of(groups: Iterable[AnalysedGroup], request: AnalysisRequest) -> list[PrunableLayer]:
    """Return the groups as layers to choose from. Their widths are those before any pruning."""
    found = []
    for group in groups:
        masked = set(request.masked.get(group.name, ()))
        found.append(
            PrunableLayer(
                name=group.name,
                width=group.width + request.removed.get(group.name, 0),
                live=tuple(unit for unit in range(group.width) if unit not in masked),
                kind=group.kind,
                channels=group.channels,
            )
        )
    return found


def channels_of(layers: Iterable[PrunableLayer]) -> int:
    """Return the channels of the layers before any pruning."""
    return sum(layer.width * layer.channels for layer in layers)


def channels_for(layers: Sequence[PrunableLayer], request: AnalysisRequest) -> int:
    """Return how many channels this cycle may prune: its share, under the cap of all cycles."""
    return channels_allowed(request.share, request.cap, channels_of(layers), request.pruned)


def chosen_units(
    layers: Sequence[PrunableLayer], scores: Mapping[str, Sequence[float]], channels: int, avoid: Units, prune: Prune
) -> Units:
    """Return the units to mask: those with the lowest scores that fit into `channels`, and none of `avoid`.

    `scores`: of every unit that the model has now. Raises ValueError for a NaN.
    """
    # Units that a compaction took have no indices any more; `choose` wants a score for every unit of the width.
    padded = {
        layer.name: [*scores[layer.name], *[math.inf] * (layer.width - len(scores[layer.name]))] for layer in layers
    }
    for name in padded.keys() & avoid.keys():
        for unit in avoid[name]:
            padded[name][unit] = math.inf
    chosen = choose(layers, padded, channels, prune)
    kept = {name: tuple(one for one in units if one not in avoid.get(name, ())) for name, units in chosen.items()}
    return {name: units for name, units in kept.items() if units}


def refusal_of(request: AnalysisRequest, answer: AnalysisAnswer, prune: Prune) -> str:
    """Return why the answer must be refused, as a clause; "" if it may be used."""
    return next(_faults(request, answer, prune), "")


def _faults(request: AnalysisRequest, answer: AnalysisAnswer, prune: Prune) -> Iterator[str]:
    if answer.cycle != request.cycle:
        yield f"it answers cycle {answer.cycle}, but {request.cycle} was asked"
    if answer.checkpoint != request.checkpoint:  # safety: answer-of-asked-checkpoint
        yield f"it is about checkpoint {answer.checkpoint or '(none)'}, but {request.checkpoint} was asked"
    yield from _faults_of_numbers(answer)
    yield from _faults_of_groups(request, answer)
    yield from _faults_of_units(request, answer, prune)
    verdict = judge(answer.measured, prune)
    # safety: verdict-judged-again
    if _STRICTER.index(verdict.decision) > _STRICTER.index(answer.decision):
        yield f"it says {answer.decision.name}, but by what it measured it is {verdict.decision.name}"
    if answer.decision is not PruningDecision.GO and not answer.reasons:
        yield f"it says {answer.decision.name} without a reason"


def _faults_of_numbers(answer: AnalysisAnswer) -> Iterator[str]:
    for name, value in (("correlation", answer.correlation), ("stability", answer.stability)):
        if value is not None and not -1.0 - 1e-9 <= value <= 1.0 + 1e-9:
            yield f"its {name} is {value}, which is not from -1 to 1"
    for name in ("seconds", "cpu_seconds"):
        if not 0.0 <= getattr(answer, name) < math.inf:
            yield f"its {name} are {getattr(answer, name)}"
    for name, given in answer.scores.items():
        bad = [score for score in given if not math.isfinite(score)]
        if bad:
            yield f"a score of {name} is {bad[0]}"
    if not _SHA256.fullmatch(answer.masks_sha256):
        yield "its masks_sha256 is no SHA-256 in hexadecimal"
    if len(answer.reasons) > REASONS_MAX or any(len(one) > REASON_CHARS_MAX for one in answer.reasons):
        yield f"it has more than {REASONS_MAX} reasons, or one of more than {REASON_CHARS_MAX} characters"


def _faults_of_groups(request: AnalysisRequest, answer: AnalysisAnswer) -> Iterator[str]:
    widths = {group.name: group.width for group in answer.groups}
    if len(widths) != len(answer.groups):
        yield "it names a group twice"
    for group in answer.groups:
        if group.width < 1 or group.channels < 1:
            yield f"{group.name} has {group.width} units of {group.channels} channels"
    for name, units in request.masked.items():
        # A group that was pruned before may be no group any more, such as one that a new seed is blended with.
        if units and max(units) >= widths.get(name, math.inf):
            yield f"it says that {name} has {widths[name]} units, but unit {max(units)} is masked already"


def _faults_of_units(request: AnalysisRequest, answer: AnalysisAnswer, prune: Prune) -> Iterator[str]:
    layers = {layer.name: layer for layer in layers_of(answer.groups, request)}
    channels = 0
    for name, units in answer.units.items():
        layer = layers.get(name)
        if layer is None:
            yield f"it names the unknown group {name}"
            return
        foreign = set(units) - set(layer.live)
        if foreign:
            yield f"{name} has no unit {min(foreign)} that is not masked"
        if rejected := set(units) & set(request.avoid.get(name, ())):
            yield f"unit {min(rejected)} of {name} was rejected before"
        if len(answer.scores.get(name, ())) != len(units):
            yield f"{name} has {len(units)} units, but {len(answer.scores.get(name, ()))} scores"
        if len(units) > removable(layer, prune):
            yield f"it takes {len(units)} units of {name}; one cycle may take {removable(layer, prune)}"
        channels += len(units) * layer.channels
    allowed = channels_for(tuple(layers.values()), request)
    yield from faults_of_choice(answer.units, answer.plan, channels, allowed, answer.decision)


def faults_of_choice(units: Units, plan: str, channels: int, allowed: int, decision: PruningDecision) -> Iterator[str]:
    """Yield why these units cannot be masked, as clauses. `allowed`: how many channels they may be after GO."""
    if fault := fault_of(units):
        yield fault
    most = allowed // 2 if decision is PruningDecision.CONDITIONAL_GO else allowed
    if channels > most:  # safety: budget-counted-again
        yield f"it takes {channels} channels; the budget is {most}"
    if max(len(msgspec.msgpack.encode(units)), len(plan.encode())) > UNITS_BYTES_MAX:
        yield f"its units or their plan have more than {UNITS_BYTES_MAX} bytes"
