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
from msgspec.structs import replace

from tolariad.core.calc.copying import Copying
from tolariad.core.calc.pruning.budget import PrunableLayer, UnitKind, choose, removable
from tolariad.core.calc.pruning.cost import Cut, ParameterCount, Shape, counted, fault_of_cuts
from tolariad.core.calc.pruning.phase import PruningPhase
from tolariad.core.calc.pruning.schedule import parameters_allowed
from tolariad.core.calc.pruning.units import Units, fault_of, joined
from tolariad.core.calc.pruning.verdict import MaskMeasure, PruningDecision, judge
from tolariad.core.calc.settings.pruning import Prune

# The units of one cycle are in events. A model of 36 000 channels gives some 5 kB.
UNITS_BYTES_MAX: Final = 256 * 1024
REASONS_MAX: Final = 32
REASON_CHARS_MAX: Final = 1_000
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
# From the decision that allows most to the one that allows nothing.
_STRICTER: Final = (PruningDecision.GO, PruningDecision.CONDITIONAL_GO, PruningDecision.NO_GO)


class AnalysisRequest(Copying, frozen=True, kw_only=True):
    """Asks for the analysis of a committed checkpoint.

    * `manifest`: BLAKE3 of its manifest.
    * `share`, `cap`: the shares of the parameters that this cycle, and all cycles, may prune.
    * `pruned`, `pruned_channels`: the number of parameters, and of channels, that are masked or removed already.
    * `taken`: the number of parameters that compactions removed.
    * `masked`: the units that are masked in the checkpoint.
    * `removed`: the number of units that compactions removed from each group.
    * `avoid`: units that were rejected, which are not chosen.
    * `former`: the importance file of the analysis before, relative to the run's folder.
    * `output`: the importance file to write, relative to the run's folder.
    """

    cycle: int
    checkpoint: str
    manifest: str
    epoch: int
    phase: PruningPhase
    share: float
    cap: float
    pruned: int = 0
    taken: int = 0
    pruned_channels: int = 0
    masked: Units = msgspec.field(default_factory=dict)
    removed: dict[str, int] = msgspec.field(default_factory=dict)
    avoid: Units = msgspec.field(default_factory=dict)
    former: str = ""
    output: str = ""


class AnalysedGroup(Struct, frozen=True, kw_only=True):
    """A group of units that can be pruned one by one.

    `width` is the number of its units now, masked ones included. `cuts` are the parameters that go with each unit; they
    refer to the shapes of the answer.
    """

    name: str
    kind: UnitKind
    width: int
    channels: int
    cuts: tuple[Cut, ...] = ()


class AnalysisAnswer(Struct, frozen=True, kw_only=True):
    """The answer to an AnalysisRequest.

    * `units`: the units that this cycle would mask. `scores`: the importance of each.
    * `masks_sha256`: the hash of their masks.
    * `plan`: the coordinates of these units in every tensor, for the trainer.
    * `correlation`: Spearman's rank correlation of importance and measured change of the loss, on `sampled` units;
      None: not measured.
    * `stability`: the rank correlation of this importance and the former one; None: not measured.
    * `samples`: the number of samples from which the importance was computed.
    * `parameters`: the number of parameters of the model as it is.
    * `parameters_masked`: the number of parameters that these units mask beyond those that are masked.
    * `shapes`: the shapes of the parameters in which the groups' units lie.
    * `refused`: modules that cannot be pruned, with the reasons.
    * `file_bytes`: the size of the importance file.
    * `seconds`: the time from start to answer. `cpu_seconds`: the processor time of the process.
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
    shapes: tuple[Shape, ...] = ()
    refused: tuple[str, ...] = ()
    file_bytes: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0


class Choice(Struct, frozen=True, kw_only=True):
    """The units from which a cycle chooses, and how much it may choose.

    * `shapes`: the shapes of the parameters in which the layers' units lie.
    * `masked`: the units that are masked already.
    * `total`: the number of parameters before any pruning.
    * `allowed`: the number of parameters that the cycle may prune.
    """

    layers: tuple[PrunableLayer, ...]
    shapes: tuple[Shape, ...]
    masked: Units
    total: int
    allowed: int

    def count(self, units: Units | None = None) -> ParameterCount:
        """Return a count from which the masked units are taken, and then these."""
        cuts = {layer.name: layer.cuts for layer in self.layers}
        return counted(self.shapes, cuts, self.masked if units is None else joined([self.masked, units]))

    def parameters_of(self, units: Units) -> int:
        """Return how many parameters go with these units beyond those that are masked."""
        return self.count(units).gone - self.count().gone


def choice_of(
    groups: Iterable[AnalysedGroup], shapes: tuple[Shape, ...], parameters: int, request: AnalysisRequest
) -> Choice:
    """Return what a cycle may choose from: its share of the parameters, under the cap of all cycles.

    `parameters` is the number of parameters of the model as it is. Together with those that compactions removed, it is
    the number before any pruning.
    """
    choice = Choice(
        layers=tuple(layers_of(groups, request)),
        shapes=shapes,
        masked=request.masked,
        total=parameters + request.taken,
        allowed=0,
    )
    # Masks grow with their model. A masked group that is none any more counts by the journal alone.
    pruned = max(request.pruned, request.taken + choice.count().gone)
    return replace(choice, allowed=parameters_allowed(request.share, request.cap, choice.total, pruned))


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
                cuts=group.cuts,
            )
        )
    return found


def channels_of(layers: Iterable[PrunableLayer]) -> int:
    """Return the channels of the layers before any pruning."""
    return sum(layer.width * layer.channels for layer in layers)


def chosen_units(
    choice: Choice, scores: Mapping[str, Sequence[float]], parameters: int, avoid: Units, prune: Prune
) -> Units:
    """Return the units to mask: those with the lowest scores that fit into `parameters`, and none of `avoid`.

    `scores` holds a score for every unit that the model has now. Raises ValueError for a NaN.
    """
    return choose(choice.layers, scores, parameters, prune, count=choice.count(), avoid=avoid)


def smallest_units(choice: Choice, prune: Prune) -> Units:
    """Return the units that may go if the smallest are taken first: there are hardly choices of more units."""
    count = choice.count()
    sizes = {
        layer.name: [float(count.cost(layer.cuts, unit)) for unit in range(max(layer.live, default=-1) + 1)]
        for layer in choice.layers
    }
    return chosen_units(choice, sizes, choice.allowed, {}, prune)


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
        elif fault := fault_of_cuts(answer.shapes, group.cuts, group.width):
            yield f"the parameters of {group.name} are impossible: {fault}"
    held = sum(math.prod(shape) for shape in answer.shapes)
    if held > answer.parameters or any(min(shape, default=0) < 0 for shape in answer.shapes):
        yield f"its groups lie in {held} parameters, but the model has {answer.parameters}"
    for name, units in request.masked.items():
        # A group that was pruned before may be no group any more, such as one that a new seed is blended with.
        if units and max(units) >= widths.get(name, math.inf):
            yield f"it says that {name} has {widths[name]} units, but unit {max(units)} is masked already"


def _faults_of_units(request: AnalysisRequest, answer: AnalysisAnswer, prune: Prune) -> Iterator[str]:
    choice = choice_of(answer.groups, answer.shapes, answer.parameters, request)
    layers = {layer.name: layer for layer in choice.layers}
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
    parameters = choice.parameters_of(answer.units)
    if parameters != answer.parameters_masked:
        yield f"it says that its units have {answer.parameters_masked} parameters; they have {parameters}"
    yield from faults_of_choice(answer.units, answer.plan, parameters, choice.allowed, answer.decision)


def faults_of_choice(
    units: Units, plan: str, parameters: int, allowed: int, decision: PruningDecision
) -> Iterator[str]:
    """Yield why these units cannot be masked, as clauses.

    `allowed` is the number of parameters that may be masked after GO.
    """
    if fault := fault_of(units):
        yield fault
    most = allowed // 2 if decision is PruningDecision.CONDITIONAL_GO else allowed
    if parameters > most:  # safety: budget-counted-again
        yield f"it takes {parameters} parameters; the budget is {most}"
    if max(len(msgspec.msgpack.encode(units)), len(plan.encode())) > UNITS_BYTES_MAX:
        yield f"its units or their plan have more than {UNITS_BYTES_MAX} bytes"
