"""The importance of units: the expected change of the loss if a unit is pruned, and cheaper estimates.

Promises: the model is not touched and the CPU's generator does not advance. Passes over data use a copy in evaluation
mode, at fixed weights. Sums are in float64, and two of them can be added. A lower score says that a unit is less
important. Magnitudes are relative to the mean of their group: only estimates of the loss can be compared between layers
as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from msgspec import Struct
from torch import Tensor, nn

from tolariad.trainer.optim.transform import Kind, kinds_of
from tolariad.trainer.pruning.copies import copied
from tolariad.trainer.pruning.units import PruningRefused, Role, TensorSlice, UnitGroup, removed
from tolariad.trainer.pruning.verify import zero
from tolariad.trainer.torch_private.tensors import leaves_in

if TYPE_CHECKING:
    from tolariad.trainer.optim.owners import Owner

# The mean loss over the samples of a batch, as a task's `loss` gives it.
Loss = Callable[[nn.Module, Any], Tensor]
Scores = dict[str, tuple[float, ...]]


class Sensitivity(Struct, frozen=True):
    """Sums over batches of the loss's derivative by each unit of a group: how it changes as the unit grows from 0.

    * `count`: the number of batches.
    * `samples`: the number of samples in all batches.
    * `total`: for each unit, the sum of the derivative.
    * `squares`: for each unit, the sum of the derivative's square.
    """

    count: int
    samples: int
    total: tuple[float, ...]
    squares: tuple[float, ...]

    def __add__(self, other: Sensitivity) -> Sensitivity:
        return Sensitivity(
            self.count + other.count,
            self.samples + other.samples,
            tuple(a + b for a, b in zip(self.total, other.total, strict=True)),
            tuple(a + b for a, b in zip(self.squares, other.squares, strict=True)),
        )

    def fisher(self) -> tuple[float, ...]:
        """Return the expected change of the loss if a unit is pruned, to second order: -mean + E[t^2] / 2.

        The second derivative is the diagonal Fisher information, E[t^2] over single samples (Theis et al. 2018,
        arXiv:1801.05787). It follows from batches: the variance over samples is that over batches times their size.
        """
        size = self.samples / self.count
        scores = []
        for total, squares in zip(self.total, self.squares, strict=True):
            mean = total / self.count
            variance = max(0.0, squares - self.count * mean**2) / (self.count - 1) if self.count > 1 else 0.0
            scores.append(-mean + (size * variance + mean**2) / 2)
        return tuple(scores)


def sensitivities(
    model: nn.Module, groups: Sequence[UnitGroup], batches: Iterable[Any], loss: Loss
) -> dict[str, Sensitivity]:
    """Return for each group the sums over `batches`. A batch's size is that of the first dimension of its first tensor.

    The derivative by a unit is that by a factor of all weights that read it: no hook, and no activation, is needed. A
    group on which the loss of no batch depends is left out.
    """
    found: dict[str, Sensitivity] = {}
    reached: set[str] = set()
    with on_a_copy(model) as trial:
        parameters = dict(trial.named_parameters())
        for parameter in parameters.values():
            parameter.requires_grad_(parameter.is_floating_point())
        for batch in batches:
            trial.zero_grad(set_to_none=True)
            with torch.enable_grad():
                loss(trial, batch).backward()
            for group in groups:
                readers = [(one, parameters[one.path]) for one in _readers(group)]
                reached |= {group.name} if any(weight.grad is not None for _, weight in readers) else set()
                of_unit = torch.stack([_by_unit(weight * _gradient(weight), one) for one, weight in readers]).sum(0)
                one = Sensitivity(1, _size(batch), tuple(of_unit.tolist()), tuple(of_unit.square().tolist()))
                found[group.name] = found[group.name] + one if group.name in found else one
    return {name: one for name, one in found.items() if name in reached}


def moments(model: nn.Module, groups: Sequence[UnitGroup], owners: Sequence[Owner]) -> Scores:
    """Return w^2 x second moment, summed over each unit: the diagonal Fisher information that an optimizer has anyway.

    It costs no pass over data. Raises PruningRefused if an optimizer keeps no second moment, such as SGD.
    """
    moment = _second_moments(model, owners)
    parameters = dict(model.named_parameters())
    scores: Scores = {}
    for group in groups:
        if without := next((one.path for one in group.slices if one.path not in moment), ""):
            raise PruningRefused(f"the optimizer of {without} has no second moment; use another estimator")
        sums = [_by_unit(parameters[one.path].square() * moment[one.path], one) for one in group.slices]
        scores[group.name] = tuple(torch.stack(sums).sum(0).tolist())
    return scores


def magnitude(model: nn.Module, groups: Sequence[UnitGroup]) -> Scores:
    """Return the Euclidean norm of the weights that produce and read each unit, relative to the group's mean."""
    parameters = dict(model.named_parameters())
    scores: Scores = {}
    for group in groups:
        slices = [one for one in group.slices if one.role is not Role.SCALES and parameters[one.path].dim() > 1]
        squares = torch.stack([_by_unit(parameters[one.path].square(), one) for one in slices]).sum(0)
        scores[group.name] = _relative(squares.sqrt())
    return scores


def measured_change(
    model: nn.Module,
    chosen: Mapping[str, Sequence[int]],
    groups: Sequence[UnitGroup],
    batches: Sequence[Any],
    loss: Loss,
) -> Scores:
    """Return how much the mean loss over `batches` rises if each of the chosen units is masked, one at a time.

    This is what an importance estimates; it needs a pass over the batches for each unit.
    """

    def mean(trial: nn.Module) -> float:
        sizes = [_size(batch) for batch in batches]
        losses = [float(loss(trial, batch)) * size for batch, size in zip(batches, sizes, strict=True)]
        return sum(losses) / sum(sizes)

    changes: Scores = {}
    with on_a_copy(model) as trial, torch.no_grad():
        parameters = dict(trial.named_parameters())
        before = {name: parameter.clone() for name, parameter in parameters.items()}
        start = mean(trial)
        for name, units in chosen.items():
            found = []
            for unit in units:
                gone = removed(groups, {name: (unit,)}).parameters
                zero(parameters, gone)
                found.append(mean(trial) - start)
                for path in gone:
                    parameters[path].copy_(before[path])
            changes[name] = tuple(found)
    return changes


@contextmanager
def on_a_copy(model: nn.Module) -> Iterator[nn.Module]:
    """Give a copy of the model in evaluation mode, and put the CPU's generator back after it."""
    trial = copied(model).eval()
    with torch.random.fork_rng(devices=[]):
        yield trial


def _second_moments(model: nn.Module, owners: Sequence[Owner]) -> dict[str, Tensor]:
    """Return the first entry of this kind in the optimizers' state, by path of the parameter."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found: dict[str, Tensor] = {}
    for owner in owners:
        keys = [key for key, one in kinds_of(owner.optimizer).items() if one is Kind.SECOND]
        for parameter, state in owner.optimizer.state.items():
            found |= {names[id(parameter)]: state[key] for key in keys[:1] if key in state and id(parameter) in names}
    return found


def _readers(group: UnitGroup) -> list[TensorSlice]:
    """Return the weights that read the units; those that produce them, if a function reads them."""
    reading = [one for one in group.slices if one.role is Role.READS]
    return reading or [one for one in group.slices if one.role is Role.PRODUCES]


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


@torch.no_grad()
def _by_unit(tensor: Tensor, one: TensorSlice) -> Tensor:
    """Return the sum of `tensor` over the coordinates of each unit, in float64 on the CPU."""
    along = tensor.detach().double().transpose(0, one.dim).flatten(1).sum(1) if tensor.dim() > 1 else tensor.double()
    indices = torch.tensor([index for unit in one.units for index in unit], dtype=torch.int64)
    unit_of = torch.tensor([at for at, unit in enumerate(one.units) for _ in unit], dtype=torch.int64)
    sums = torch.zeros(len(one.units), dtype=torch.float64)
    return sums.index_add_(0, unit_of, along.detach().cpu().index_select(0, indices))


def _relative(values: Tensor) -> tuple[float, ...]:
    """Return the values divided by their mean; as they are, if it is 0."""
    mean = float(values.mean())
    return tuple((values / mean).tolist()) if mean else tuple(values.tolist())


def _size(batch: Any) -> int:
    return next((len(one) for one in leaves_in(batch) if isinstance(one, Tensor) and one.dim()), 1)
