"""The analysis of a checkpoint: groups, importance, choice within the budget, scores of the analysis, validation.

Promises: the answer is a pure function of checkpoint, configuration and request, but for its times and the share of the
machine's memory. The checkpoint's files are read only, and verified first. The only file written is the importance file
that the request names.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from msgspec.structs import replace

from tolariad.core.calc.pruning.analysis import (
    REASON_CHARS_MAX,
    REASONS_MAX,
    AnalysisAnswer,
    AnalysisRequest,
    choice_of,
    chosen_units,
)
from tolariad.core.calc.pruning.ranking import rank_correlation
from tolariad.core.calc.pruning.verdict import MaskVerdict, PruningDecision, judge
from tolariad.core.calc.settings.rules import read_resolved, resolved_json
from tolariad.failpoints import reached
from tolariad.trainer.checkpoints.optimizers import restore_optimizer
from tolariad.trainer.checkpoints.restore import load
from tolariad.trainer.data.randomness import derived_seed
from tolariad.trainer.data.samples import samples_of
from tolariad.trainer.probes.copying import built_copy
from tolariad.trainer.probes.messages import Trial, Weights
from tolariad.trainer.pruning.counting import counted_groups
from tolariad.trainer.pruning.evidence import example_inputs, groups_of, loss_of, protected, training_data
from tolariad.trainer.pruning.history import layer_means, read_history, stability, write_history
from tolariad.trainer.pruning.importance import Scores, magnitude, measured_change, moments, sensitivities
from tolariad.trainer.pruning.plan import plan_of
from tolariad.trainer.pruning.units import Found, PruningRefused, Refusal
from tolariad.trainer.pruning.validation import MaskValidation

if TYPE_CHECKING:
    from tolariad.core.calc.settings.pruning import Prune
    from tolariad.trainer.pruning.evidence import SeededBatch
    from tolariad.trainer.pruning.units import UnitGroup
    from tolariad.trainer.setup import Setup
    from tolariad.trainer.tasks.task import FoundTask

# Units whose change of the loss is measured, to score the importance.
SAMPLED_UNITS: Final = 16
_REFUSED_MAX: Final = 64


def analyse(
    run: Path, config: bytes, request: AnalysisRequest, started: float, given: FoundTask | None = None
) -> AnalysisAnswer:
    """Return the analysis. `config`: the run's resolved configuration. `started`: when, on the monotonic clock.

    `given`: the task, if it is not the one that the configuration names.

    Raises PruningRefused, ImportError without torch-pruning, and what `built_copy` raises.
    """
    setup = _built(run, config, request, given)
    prune = setup.settings.prune
    reached("analysis")
    first, batches = training_data(setup, max(1, request.epoch), prune.min_samples)
    found, scores = _ranked(setup, groups_of(setup, first), batches)
    reached("analysis")
    unborn = [f"{name}." for name in protected(setup)]
    counted = counted_groups(setup.model, found.groups, unborn)
    choice = choice_of(counted.groups, counted.shapes, counted.parameters, request)
    validation = MaskValidation(setup, found.groups, request, batches, prune.min_samples)
    units = chosen_units(choice, scores, choice.allowed, request.avoid, prune)
    measured = validation.measure(units)
    verdict = judge(measured, prune, validation.metric)
    if verdict.decision is PruningDecision.CONDITIONAL_GO:
        units = chosen_units(choice, scores, choice.allowed // 2, request.avoid, prune)
        measured = validation.measure(units)
        verdict = _after_doubts(verdict, judge(measured, prune, validation.metric))
    reached("analysis")
    plan = plan_of(setup.model, found.groups, units, example_inputs(setup, first))
    correlation, sampled = _correlation(setup, found.groups, request, scores, batches)
    history = read_history(run, request.former, prune.estimator)
    steadiness = stability(scores, history[max(history)], request.masked) if history else None
    samples = sum(samples_of(one.batch) for one in batches)
    size = 0
    if request.output:
        labels = {**_labels(request, prune, samples, correlation), "layers": layer_means(scores, request.masked)}
        size = write_history(run, request.output, {**history, request.cycle: scores}, labels)
    reached("analysis")
    return AnalysisAnswer(
        cycle=request.cycle,
        checkpoint=request.checkpoint,
        decision=verdict.decision,
        measured=measured,
        groups=counted.groups,
        reasons=tuple(one[:REASON_CHARS_MAX] for one in verdict.reasons[:REASONS_MAX]),
        units=units,
        scores={name: tuple(scores[name][unit] for unit in chosen) for name, chosen in units.items()},
        masks_sha256=plan.masks.sha256,
        plan=plan.text,
        estimator=prune.estimator,
        correlation=correlation,
        sampled=sampled,
        stability=steadiness,
        samples=samples,
        parameters=counted.parameters,
        parameters_masked=choice.parameters_of(units),
        shapes=counted.shapes,
        refused=tuple(f"{one.name}: {one.why}" for one in found.refused[:_REFUSED_MAX]),
        file_bytes=size,
        seconds=time.perf_counter() - started,
        cpu_seconds=time.process_time(),
    )


def _built(run: Path, config: bytes, request: AnalysisRequest, given: FoundTask | None) -> Setup:
    """Build the run on the CPU with the weights of the checkpoint, as one thread, without a loader's workers."""
    settings = read_resolved(config)
    settings = replace(
        settings,
        device="cpu",
        precision="fp32",
        compile=False,
        determinism=settings.determinism or "warn",
        torch_threads=1,
        workers=0,
    )
    folder = run / "checkpoints" / request.checkpoint
    weights = Weights(request.checkpoint, str(folder), request.manifest)
    setup = built_copy(Trial(config=resolved_json(settings).decode(), weights=weights), given).setup
    if settings.prune.estimator == "moments":
        trees = load(folder, request.manifest).optimizers
        for owner, tree in zip(setup.owners, trees.values(), strict=True):
            restore_optimizer(owner.optimizer, tree, setup.device)
    return setup


def _ranked(setup: Setup, found: Found, batches: Sequence[SeededBatch]) -> tuple[Found, Scores]:
    """Return the groups whose units all have an importance, and these. The others are refused.

    Raises PruningRefused if the configured estimator can rank none of several.
    """
    scores = _importance(setup, found.groups, batches) if found.groups else {}
    scores = {name: ones for name, ones in scores.items() if all(map(math.isfinite, ones))}
    why = f"its units have no importance by prune.estimator: {setup.settings.prune.estimator}, or not a finite one"
    return (
        Found(
            tuple(group for group in found.groups if group.name in scores),
            (*found.refused, *(Refusal(group.name, why) for group in found.groups if group.name not in scores)),
        ),
        scores,
    )


def _each(estimate: Callable[[Sequence[UnitGroup]], Scores], groups: Sequence[UnitGroup]) -> Scores:
    """Return the scores of the groups that can be estimated. Raises PruningRefused if none can."""
    scores: Scores = {}
    refusals = []
    for group in groups:
        try:
            scores |= estimate([group])
        except PruningRefused as refused:
            refusals.append(refused)
    if not scores and refusals:
        raise refusals[0]
    return scores


def _importance(setup: Setup, groups: Sequence[UnitGroup], batches: Sequence[SeededBatch]) -> Scores:
    """Return the importance of all units by the configured estimator; of groups that it cannot rank there is none."""
    prune, model = setup.settings.prune, setup.model
    match prune.estimator:
        case "magnitude":
            return magnitude(model, groups)
        case "moments":
            return _each(lambda some: moments(model, some, setup.owners), groups)
        case "fisher":
            sums = sensitivities(model, groups, batches, loss_of(setup))
            return {name: one.fisher() for name, one in sums.items()}


def _correlation(
    setup: Setup,
    groups: Sequence[UnitGroup],
    request: AnalysisRequest,
    scores: Scores,
    batches: Sequence[SeededBatch],
) -> tuple[float | None, int]:
    """Return the rank correlation of importance and measured change of the loss on sampled units, and their number."""
    live = [
        (group.name, unit)
        for group in groups
        for unit in range(group.width)
        if unit not in request.masked.get(group.name, ())
    ]
    draw = torch.Generator().manual_seed(derived_seed(setup.rng_seed, "pruning", "sampled", request.cycle))
    chosen: dict[str, list[int]] = {}
    for at in torch.randperm(len(live), generator=draw)[:SAMPLED_UNITS].tolist():
        name, unit = live[at]
        chosen.setdefault(name, []).append(unit)
    sampled = sum(map(len, chosen.values()))
    if sampled < 2:
        return None, sampled
    changes = measured_change(setup.model, chosen, groups, batches, loss_of(setup))
    expected = [scores[name][unit] for name, units in chosen.items() for unit in units]
    return rank_correlation(expected, [one for name in chosen for one in changes[name]]), sampled


def _after_doubts(first: MaskVerdict, second: MaskVerdict) -> MaskVerdict:
    """Return the verdict on half of the units: never better than CONDITIONAL_GO, with the reasons of the first."""
    if second.decision is PruningDecision.NO_GO:
        return second
    return replace(first, reasons=(*first.reasons, *(one for one in second.reasons if one not in first.reasons)))


def _labels(request: AnalysisRequest, prune: Prune, samples: int, correlation: float | None) -> Mapping[str, str]:
    return {
        "cycle": str(request.cycle),
        "checkpoint": request.checkpoint,
        "epoch": str(request.epoch),
        "estimator": prune.estimator,
        "samples": str(samples),
        "rank_correlation": "" if correlation is None else repr(correlation),
    }
