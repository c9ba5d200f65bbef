"""Compaction: masked units are removed, so that the model becomes smaller and trains on as it would have.

Promises: the compacted model gives the masked model's outputs within 1e-5: a trial on copies shows it before anything
changes. Optimizer state and averages of what stays are the same numbers. If it is refused or fails, model, optimizers
and rates are as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from tolariad.failpoints import reached
from tolariad.trainer.architecture.follow import Following
from tolariad.trainer.architecture.undo import Undo
from tolariad.trainer.pruning.copies import copied
from tolariad.trainer.pruning.masks import HeldMasks
from tolariad.trainer.pruning.removal import remove
from tolariad.trainer.pruning.units import PruningRefused
from tolariad.trainer.pruning.verify import difference

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tolariad.trainer.lr import UnifiedLRController
    from tolariad.trainer.optim.average import Average
    from tolariad.trainer.optim.mapping import ParameterMapping
    from tolariad.trainer.optim.owners import Owner
    from tolariad.trainer.pruning.plan import Plan

_TOLERANCE: Final = 1e-5


class Trial(NamedTuple):
    """A compaction on copies: the masked model, the smaller one, and the greatest difference of their outputs."""

    masked: nn.Module
    small: nn.Module
    difference: float


def try_compaction(model: nn.Module, plan: Plan, inputs: tuple[Any, ...]) -> Trial:
    """Remove the units of `plan` from a copy, and compare. The model is not changed, and no generator advances.

    `inputs`: the model's positional arguments. Raises PruningRefused if a unit cannot be removed.
    """
    _check(model, plan)
    masked = copied(model).eval()
    small = copied(masked)
    remove(small, plan.gone)
    worst = difference(masked, small, inputs)
    if isinstance(worst, str):
        raise PruningRefused(f"these units cannot be removed: {worst}")
    # Negated: a NaN is no agreement.
    if not worst <= _TOLERANCE:  # safety: smaller-model-compared
        raise PruningRefused(
            f"these units cannot be removed: masked and removed they give different outputs (by {worst:.1e})"
        )
    return Trial(masked, small, worst)


def compact(
    model: nn.Module,
    plan: Plan,
    owners: list[Owner],
    *,
    rates: UnifiedLRController,
    average: Average | None = None,
    hosts: int | None = None,
) -> None:
    """Remove the units of `plan` from the model, its optimizers and its average. Their masks are spent afterwards.

    Call `try_compaction` before it. `hosts`: the number of owners, from the first on, that are the host's; None: all.
    Raises PruningRefused, and has changed nothing, if the optimizers cannot follow.
    """
    kept = {} if average is None else dict(average.tensors)
    undo, following = Undo(model, owners, rates), Following(model, owners, rates, average, hosts=hosts)
    try:
        mappings = remove(model, plan.gone)
        reached("prune_cut")
        following.after(mappings)
    except Exception as error:
        undo.put_back()  # safety: failed-compaction-undone
        raise PruningRefused(f"the compaction failed: {type(error).__name__}: {error}") from error
    if average is not None:
        _contract(average, kept, mappings)


def _check(model: nn.Module, plan: Plan) -> None:
    HeldMasks(model, plan.masks)
    for name, why in plan.fixed.items():
        raise PruningRefused(f"the units of {name} can be masked but not removed: {why}")
    parameters = dict(model.named_parameters())
    for path, dims in plan.gone.parameters.items():
        for dim, indices in dims.items():
            masked = parameters[path].detach().index_select(dim, torch.tensor(indices, device=parameters[path].device))
            if masked.count_nonzero():  # safety: only-zeros-removed
                raise PruningRefused(f"{path} is not 0 where it is masked: hold the masks first")


def _contract(average: Average, kept: dict[str, Tensor], mappings: Sequence[ParameterMapping]) -> None:
    """Give the averages of smaller parameters the numbers that they had."""
    values = dict(average.tensors)
    for mapping in mappings:
        for dim, indices in (mapping.keep or {}).items():
            tensor = kept[mapping.old_id]
            kept[mapping.old_id] = tensor.index_select(dim, torch.tensor(list(indices), device=tensor.device))
        values[mapping.new_id] = kept[mapping.old_id]
    average.load(values)


def sizes(model: nn.Module, owners: Sequence[Owner]) -> tuple[int, int]:
    """Return the number of parameters, and the bytes of parameters, buffers and optimizer state."""
    parameters = list(model.parameters())
    state = [
        one
        for owner in owners
        for entries in owner.optimizer.state.values()
        for one in entries.values()
        if isinstance(one, torch.Tensor)
    ]
    tensors = [*parameters, *model.buffers(), *state]
    return sum(one.numel() for one in parameters), sum(one.numel() * one.element_size() for one in tensors)
