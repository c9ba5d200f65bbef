"""The activity of units on data: how often each is active, and which units of a group are redundant.

Promises: as `importance`: a copy in evaluation mode, exact sums in float64. Hooks are on the copy only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tolariad.trainer.pruning.importance import Loss, Scores, on_a_copy, relative
from tolariad.trainer.pruning.modules import linear_sides
from tolariad.trainer.pruning.units import PruningRefused, Role, TensorSlice, UnitGroup


@dataclass(frozen=True)
class Activity:
    """Sums over all values of a group's units, as the layer after them reads them. Tensors are float64 on the CPU.

    * `count`: the number of values of each unit.
    * `active` (n): for each unit, the number of values above the threshold.
    * `total` (n): for each unit, the sum of its values.
    * `products` (n, n): for each pair of units, the sum of the products of their values.
    """

    count: int
    active: Tensor
    total: Tensor
    products: Tensor

    def __add__(self, other: Activity) -> Activity:
        return Activity(
            self.count + other.count,
            self.active + other.active,
            self.total + other.total,
            self.products + other.products,
        )

    def frequency(self) -> Tensor:
        """Return the share of each unit's values that is above the threshold."""
        return self.active / self.count

    def cosines(self) -> Tensor:
        """Return the cosine of each pair of units, of their values less the mean. A unit that is constant has 0."""
        mean = self.total / self.count
        covariance = self.products / self.count - torch.outer(mean, mean)
        variance, power = covariance.diagonal(), self.products.diagonal() / self.count
        # What rounding leaves of a constant has no direction.
        scale = torch.where(variance > 1e-12 * power, variance.clamp(min=0.0).sqrt(), torch.inf)
        return (covariance / torch.outer(scale, scale)).clamp_(-1.0, 1.0).fill_diagonal_(1.0)


def activities(
    model: nn.Module, groups: Sequence[UnitGroup], batches: Iterable[Any], loss: Loss, threshold: float
) -> dict[str, Activity]:
    """Return the activity of each group's units on `batches`; `loss` runs the model.

    A group is left out if the layer that reads it is not called as a module, or its units have unequal sizes. Raises
    PruningRefused if none is left of several.
    """
    found: dict[str, Activity] = {}
    why = ""

    def look(group: UnitGroup, one: TensorSlice) -> Any:
        indices = torch.tensor(one.units)

        def hook(module: nn.Module, given: tuple[Any, ...]) -> None:
            values = given[0].detach()
            last = values if linear_sides(module) else values.movedim(1, -1)
            by_unit = last[..., indices.to(last.device)].transpose(-1, -2).reshape(-1, len(one.units)).double().cpu()
            active = (by_unit.abs() > threshold).sum(0).double()
            now = Activity(len(by_unit), active, by_unit.sum(0), by_unit.T @ by_unit)
            found[group.name] = found[group.name] + now if group.name in found else now

        return hook

    with on_a_copy(model) as trial, torch.no_grad():
        for group in groups:
            one = next((one for one in group.slices if one.role is Role.READS), None)
            if one is None or len({len(unit) for unit in one.units}) > 1:
                why = why or f"{group.name}: no layer reads its units alike"
                continue
            trial.get_submodule(one.path.rpartition(".")[0]).register_forward_pre_hook(look(group, one))
        for batch in batches:
            loss(trial, batch)
    if groups and not found:
        raise PruningRefused(why or f"{groups[0].name}: the layer that reads its units is never called as a module")
    return found


def redundant(cosines: Tensor, scores: Sequence[float], threshold: float) -> tuple[int, ...]:
    """Return the units that are redundant beside a more important one, ascending. The best of them is kept.

    `cosines` is the matrix of cosines between units. `scores` holds the importance of each unit; of equal ones the
    first is kept.
    """
    order = sorted(range(len(scores)), key=lambda unit: (-scores[unit], unit))
    kept: list[int] = []
    gone = []
    for unit in order:
        if any(float(cosines[unit, other]) > threshold for other in kept):
            gone.append(unit)
        else:
            kept.append(unit)
    return tuple(sorted(gone))


def activation_scores(found: dict[str, Activity]) -> Scores:
    """Return how often each unit is active, relative to the group's mean."""
    return {name: relative(one.frequency()) for name, one in found.items()}


def uniqueness_scores(found: dict[str, Activity], threshold: float) -> Scores:
    """Return 1 - the greatest cosine with another unit of the group that stays.

    Of units whose cosines are above `threshold` the most active one stays. So a copy has 0, and what it copies has more
    than 1 - `threshold`: one of them is pruned, never both before others.
    """
    scores: Scores = {}
    for name, one in found.items():
        cosines = one.cosines()
        gone = set(redundant(cosines, one.frequency().tolist(), threshold))
        others = cosines.fill_diagonal_(-1.0)
        others[:, sorted(gone)] = -1.0
        scores[name] = tuple((1.0 - others.max(1).values).tolist())
    return scores
