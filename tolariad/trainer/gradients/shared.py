"""Gradients of parameters that several losses share, one row for each loss.

The parameters that exactly the same losses reach, on one device and in one precision, are a *block*: they are compared
as one vector. Promises: no gradient that torch returned is changed in place, since it may be a view of another one.
Rows are in float32, or in float64 for parameters in double precision. A parameter without a gradient gets none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import torch

from tolariad.trainer.torch_private import hooks, lists

# Columns of a block that are in double precision at one time.
_COLUMNS: Final = 1 << 20
_WIDE: Final = (torch.float64, torch.complex128)


class Sharing(NamedTuple):
    """The leaves that losses reach, by the numbers of these losses; 0 is the host's.

    `shared`: parameters with several losses. `others`: those with one loss, and leaves that are no parameters, such as
    an input that requires a gradient. Their gradients are added up, and not compared.
    """

    shared: dict[tuple[int, ...], list[torch.Tensor]]
    others: dict[tuple[int, ...], list[torch.Tensor]]

    @property
    def parameters(self) -> int:
        """The number of shared parameters."""
        return sum(map(len, self.shared.values()))


def sharing_of(leaves: Sequence[dict[int, torch.Tensor]]) -> Sharing:
    """Return which losses reach which leaves. `leaves` holds, for each loss, the leaves that it reaches, by `id`."""
    reached: dict[int, list[int]] = {}
    found: dict[int, torch.Tensor] = {}
    for number, of_loss in enumerate(leaves):
        for key, leaf in of_loss.items():
            reached.setdefault(key, []).append(number)
            found[key] = leaf
    sharing = Sharing({}, {})
    for key, numbers in reached.items():
        is_shared = len(numbers) > 1 and isinstance(found[key], torch.nn.Parameter)
        (sharing.shared if is_shared else sharing.others).setdefault(tuple(numbers), []).append(found[key])
    return sharing


class Blocks:
    """The blocks of a model. Their memory is used again while the same losses share the same parameters."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._key: list[tuple[tuple[int, ...], list[int]]] = []
        # Their tensors stay alive: another one could otherwise get the same identity.
        self._held: list[torch.Tensor] = []

    def of(self, sharing: Sharing) -> list[Block]:
        """Return the blocks of these parameters, without any gradient."""
        key = [(losses, [id(leaf) for leaf in leaves]) for losses, leaves in sharing.shared.items()]
        if key != self._key:
            grouped: dict[tuple[tuple[int, ...], str, torch.dtype], list[torch.Tensor]] = {}
            for losses, leaves in sharing.shared.items():
                for leaf in leaves:
                    dtype = torch.float64 if leaf.dtype in _WIDE else torch.float32
                    grouped.setdefault((losses, str(leaf.device), dtype), []).append(leaf)
            self._blocks = [Block(losses, leaves, dtype) for (losses, _, dtype), leaves in sorted_groups(grouped)]
            self._key, self._held = key, [leaf for leaves in sharing.shared.values() for leaf in leaves]
        for block in self._blocks:
            block.clear()
        return self._blocks


def sorted_groups(
    grouped: dict[tuple[tuple[int, ...], str, torch.dtype], list[torch.Tensor]],
) -> list[tuple[tuple[tuple[int, ...], str, torch.dtype], list[torch.Tensor]]]:
    """Return the groups in an order that depends on nothing but their losses, devices and precisions."""
    return sorted(grouped.items(), key=lambda item: (item[0][0], item[0][1], str(item[0][2])))


class Block:
    """The gradients of some losses for the parameters that they share.

    * `losses`: the numbers of the losses, rising. There is a row for each.
    * `rows`: the gradients, of shape (losses, number of real values).
    """

    def __init__(self, losses: tuple[int, ...], leaves: list[torch.Tensor], dtype: torch.dtype) -> None:
        self.losses = losses
        self.leaves = leaves
        sizes = [leaf.numel() * (2 if leaf.is_complex() else 1) for leaf in leaves]
        self.rows = torch.zeros((len(losses), sum(sizes)), dtype=dtype, device=leaves[0].device)
        self._views = [_as_leaves(row, leaves, sizes) for row in self.rows]
        self._sizes = sizes
        self._given: set[int] = set()
        # A sparse gradient is added up as it is, and not compared: as a row it would be as large as its parameter.
        self._sparse: dict[int, list[tuple[int, torch.Tensor]]] = {}

    def clear(self) -> None:
        """Forget the gradients of the last time."""
        self._given.clear()
        self._sparse.clear()

    @torch.no_grad()
    def put(self, loss: int, gradients: Sequence[torch.Tensor | None]) -> None:
        """Copy the gradients of a loss, in the order of `leaves`, into its row. None counts as zero."""
        row = self.losses.index(loss)
        views, dense = [], []
        for place, (view, gradient) in enumerate(zip(self._views[row], gradients, strict=True)):
            if gradient is None or gradient.is_sparse:
                view.zero_()
                if gradient is not None:
                    self._sparse.setdefault(place, []).append((loss, gradient))
                continue
            self._given.add(place)
            views.append(view)
            dense.append(torch.view_as_real(gradient.resolve_conj()) if gradient.is_complex() else gradient)
        if views:
            # One call for all: a call for each takes most of the time.
            lists.copy_(views, dense)

    @torch.no_grad()
    def gram(self) -> torch.Tensor:
        """Return the inner products of the rows, in double precision: in single, squares of small values vanish."""
        total = torch.zeros((len(self.losses), len(self.losses)), dtype=torch.float64, device=self.rows.device)
        for columns in self.rows.split(_COLUMNS, dim=1):
            wide = columns.double()
            total.addmm_(wide, wide.T)
        return total

    @torch.no_grad()
    def drop(self, losses: set[int]) -> None:
        """Set the rows of these losses to zero, whatever they hold, and forget their sparse gradients."""
        for row, loss in enumerate(self.losses):
            if loss in losses:
                self.rows[row].zero_()
        for place, found in self._sparse.items():
            self._sparse[place] = [(loss, gradient) for loss, gradient in found if loss not in losses]

    @torch.no_grad()
    def add_to_gradients(self, combined: torch.Tensor) -> None:
        """Add `combined`, of the shape of a row, to the `.grad` of the parameters, as a backward pass does.

        In place if there is a gradient. The hooks that torch calls after a gradient was added are called.
        """
        for place, (leaf, value) in enumerate(
            zip(self.leaves, _as_leaves(combined, self.leaves, self._sizes), strict=True)
        ):
            if place in self._given:
                _accumulate(leaf, torch.complex(value[..., 0], value[..., 1]) if leaf.is_complex() else value)
            for _, gradient in self._sparse.get(place, ()):
                leaf.grad = gradient.clone() if leaf.grad is None else leaf.grad + gradient
            if place in self._given or self._sparse.get(place):
                for hook in hooks.after_accumulation(leaf):
                    hook(leaf)


def _as_leaves(row: torch.Tensor, leaves: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
    """Return views of a row in the shapes of parameters; complex ones as pairs of real numbers."""
    return [
        part.view((*leaf.shape, 2) if leaf.is_complex() else leaf.shape)
        for part, leaf in zip(row.split(list(sizes)), leaves, strict=True)
    ]


def _accumulate(leaf: torch.Tensor, value: torch.Tensor) -> None:
    if leaf.grad is None:
        # In the parameter's own layout: `value` is part of memory that is used again.
        leaf.grad = torch.empty_like(leaf.detach()).copy_(value)
    elif leaf.grad.is_sparse:
        leaf.grad = value.to(leaf.dtype) + leaf.grad
    else:
        leaf.grad.add_(value)


def grams_on_host(blocks: Sequence[Block]) -> list[list[list[float]]]:
    """Return the inner products of every block, in one transfer."""
    grams = [block.gram() for block in blocks]
    flat: list[float] = torch.cat([gram.flatten().to(grams[0].device, non_blocking=True) for gram in grams]).tolist()
    found: list[list[list[float]]] = []
    for gram in grams:
        size = len(gram)
        found.append([flat[start : start + size] for start in range(0, size * size, size)])
        del flat[: size * size]
    return found


def non_finite(blocks: Sequence[Block], grams: Sequence[Sequence[Sequence[float]]]) -> set[int]:
    """Return the losses that have a gradient which is not finite."""
    return {
        loss
        for block, gram in zip(blocks, grams, strict=True)
        for row, loss in enumerate(block.losses)
        if not math.isfinite(gram[row][row])
    }
