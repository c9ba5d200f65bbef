"""The accuracy that the digits CNN loses if a share of its channels is masked at once.

The channels are chosen by Fisher, by magnitude, or at random.

Groups, scores, choice and masks are those of the product, with its floors and caps lifted: a layer keeps one channel.
The fine-tuning is FINE_EPOCHS epochs of AdamW at a tenth of the rate, with the masks held.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import nn
from torch.nn import functional

from tests.study.folded import network, parts
from tests.study.study import Interval, difference
from tolariad.core.calc.pruning.analysis import AnalysedGroup, AnalysisRequest, choice_of, chosen_units
from tolariad.core.calc.pruning.cost import Cut
from tolariad.core.calc.pruning.phase import PruningPhase
from tolariad.core.calc.pruning.units import Units, count_of
from tolariad.core.calc.settings.pruning import Prune
from tolariad.trainer.optim.owners import HOST, Owner
from tolariad.trainer.pruning.importance import Scores, magnitude, sensitivities
from tolariad.trainer.pruning.masks import apply_masks, masks_of
from tolariad.trainer.pruning.units import UnitGroup
from tolariad.trainer.pruning.verify import find_groups
from tolariad.trainer.tasks.digits import augmented

SHARES = (0.05, 0.10, 0.20, 0.30, 0.40, 0.50)
NAMES = ("fisher", "magnitude", "random")
EPOCHS, FINE_EPOCHS = 20, 5
DRAWS = 3
LIFTED = Prune(min_channels=1, min_heads=1, min_layer_share=0.0, max_layer_share_per_cycle=1.0)
_RATE, _BATCH = 3e-3, 64

Data: TypeAlias = tuple[torch.Tensor, torch.Tensor]
# Digits that were right, of how many: after the masks, and after the fine-tuning.
Found: TypeAlias = tuple[float, float, int]


def trained(seed: int, fold: int) -> nn.Module:
    """Return the network after its training on three folds; the last quarter has the rate of the fine-tuning."""
    data = parts(seed, fold)["train"]
    torch.manual_seed(seed)
    model = network()
    _train(model, data, EPOCHS - FINE_EPOCHS, _RATE)
    _train(model, data, FINE_EPOCHS, _RATE / 10)
    return model


def _train(model: nn.Module, data: Data, epochs: int, rate: float, units: Units | None = None, groups=()) -> None:
    images, labels = data
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    held = apply_masks(model, masks_of(model, groups, units or {}), [Owner(HOST, optimizer)])
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(_BATCH):
            optimizer.zero_grad()
            functional.cross_entropy(model(augmented(images[rows])), labels[rows]).backward()
            held.zero_gradients()
            optimizer.step()
            held.hold()
    model.eval()


def scores_of(model: nn.Module, groups: tuple[UnitGroup, ...], data: Data, name: str, draw: int) -> Scores:
    """Return the scores of all units. `draw`: of the random ones."""
    if name == "random":
        drawn = torch.Generator().manual_seed(draw)
        return {group.name: tuple(torch.rand(group.width, generator=drawn).tolist()) for group in groups}
    if name == "magnitude":
        return magnitude(model, groups)
    batches = [(at, *part) for at, part in enumerate(zip(*(one.split(_BATCH) for one in data), strict=True))]
    return {of: sums.fisher() for of, sums in sensitivities(model, groups, batches, _seeded_loss).items()}


def _seeded_loss(model: nn.Module, batch: tuple[int, torch.Tensor, torch.Tensor]) -> torch.Tensor:
    seed, images, labels = batch
    torch.manual_seed(seed)
    return functional.cross_entropy(model(augmented(images)), labels)


def chosen(groups: Sequence[UnitGroup], scores: Scores, share: float, prune: Prune = LIFTED) -> Units:
    """Return the units that a cycle with a budget of so many channels and no cap masks.

    The budget of a run counts parameters. Here each channel is one, so that the curve is over the share of channels.
    """
    request = AnalysisRequest(
        cycle=1,
        checkpoint="",
        manifest="",
        epoch=EPOCHS,
        phase=PruningPhase.ACTIVE_PRUNING,
        share=share,
        cap=1.0,
    )
    shapes = tuple((group.width * group.channels,) for group in groups)
    analysed = [
        AnalysedGroup(name=g.name, kind=g.kind, width=g.width, channels=g.channels, cuts=(Cut(at, 0, (g.channels,)),))
        for at, g in enumerate(groups)
    ]
    choice = choice_of(analysed, shapes, sum(size for (size,) in shapes), request)
    return chosen_units(choice, scores, choice.allowed, {}, prune)


def measured(seed: int, fold: int) -> dict[str, dict[float, list[Found]]]:
    """Return by name and share what each choice gives; share 0: nothing is masked."""
    data, tested = parts(seed, fold)["train"], parts(seed, fold)["test"]
    model = trained(seed, fold)
    groups = find_groups(model, (data[0][:4],)).groups
    found: dict[str, dict[float, list[Found]]] = {"none": {0.0: [_tried(model, groups, {}, data, tested, seed)]}}
    for name in NAMES:
        for draw in range(DRAWS if name == "random" else 1):
            scores = scores_of(model, groups, data, name, 1000 * seed + 10 * fold + draw)
            for share in SHARES:
                units = chosen(groups, scores, share)
                assert count_of(units) == int(share * sum(group.width for group in groups) + 1e-9)
                one = _tried(model, groups, units, data, tested, seed)
                found.setdefault(name, {}).setdefault(share, []).append(one)
    return found


def _tried(model: nn.Module, groups: tuple[UnitGroup, ...], units: Units, data: Data, tested: Data, seed: int) -> Found:
    masked = copy.deepcopy(model)
    _train(masked, data, 0, _RATE, units, groups)
    at_once = _right(masked, tested)
    torch.manual_seed(seed)
    _train(masked, data, FINE_EPOCHS, _RATE / 10, units, groups)
    return at_once, _right(masked, tested), len(tested[1])


@torch.no_grad()
def _right(model: nn.Module, tested: Data) -> float:
    return float((model(tested[0]).argmax(1) == tested[1]).sum())


# -- tables ------------------------------------------------------------------------------------------------------------

Measured: TypeAlias = Mapping[str, Mapping[float, list[Found]]]
WHEN = ("at once", f"after {FINE_EPOCHS} epochs of fine-tuning")


def accuracies(by_seed: Mapping[int, list[Measured]], name: str, share: float, when: int) -> list[float]:
    """Return the accuracy of each seed: over its folds, and over the draws of random choices."""
    found = []
    for folds in by_seed.values():
        runs = [one for fold in folds for one in fold[name][share]]
        found.append(sum(one[when] for one in runs) / sum(one[2] for one in runs))
    return found


def above(by_seed: Mapping[int, list[Measured]], other: str, share: float, when: int) -> Interval:
    """Return how many points Fisher's choice is above the other."""
    return difference(accuracies(by_seed, "fisher", share, when), accuracies(by_seed, other, share, when))


def table(by_seed: Mapping[int, list[Measured]], when: int) -> list[str]:
    """Return the lines of a table: accuracies in percent, differences in points with their 95 % intervals."""
    whole = 100 * statistics.fmean(accuracies(by_seed, "none", 0.0, when))
    lines = [
        f"\n| masked, {WHEN[when]} | Fisher | magnitude | random | Fisher - magnitude | Fisher - random |",
        "|---|---|---|---|---|---|",
        f"| 0 % | {whole:.2f} % | {whole:.2f} % | {whole:.2f} % | | |",
    ]
    for share in SHARES:
        means = [f"{100 * statistics.fmean(accuracies(by_seed, name, share, when)):.2f} %" for name in NAMES]
        against = [str(above(by_seed, name, share, when)) for name in ("magnitude", "random")]
        lines.append(f"| {100 * share:.0f} % | {' | '.join((*means, *against))} |")
    return lines
