"""Masks: units that are held at 0 while the model trains on, in its weights, moments and averages.

Promises: a mask set is applied whole or not at all; a set that does not fit is refused by the parameter's name. Masks
are plain values beside the model, never in its state_dict. A masked coordinate is exactly 0 after `hold`, whatever the
optimizer did: it is assigned, not multiplied, so a NaN does not survive. Nothing runs by a hook: the loop calls
`zero_gradients` before the norm and `hold` after the update.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import torch
from msgspec import Struct

from tolariad.trainer.optim.cautious import CautiousAdamW
from tolariad.trainer.optim.transform import kinds_of
from tolariad.trainer.pruning.units import Coordinates, PruningRefused, UnitGroup, removed

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from tolariad.trainer.optim.average import Average
    from tolariad.trainer.optim.owners import Owner


class ParameterMask(Struct, frozen=True):
    """The masked coordinates of one parameter: whole rows, columns, ...

    `dims` holds the masked indices of each dimension, ascending.
    """

    path: str
    shape: tuple[int, ...]
    dims: dict[int, tuple[int, ...]]

    @property
    def sha256(self) -> str:
        """SHA-256 of path, shape and indices, in hexadecimal."""
        text = msgspec.json.encode((self.path, self.shape, sorted(self.dims.items())))
        return hashlib.sha256(text).hexdigest()


class MaskSet(Struct, frozen=True):
    """All masks of a model. `units`: the masked units of each group, by its name; compaction removes these."""

    masks: tuple[ParameterMask, ...] = ()
    units: dict[str, tuple[int, ...]] = {}

    @property
    def sha256(self) -> str:
        """SHA-256 over the hashes of all masks in the order of their paths: Leyline's `mask_set_sha256`."""
        return hashlib.sha256("".join(mask.sha256 for mask in self.masks).encode()).hexdigest()

    @property
    def coordinates(self) -> Coordinates:
        """The masked coordinates by path."""
        return {mask.path: mask.dims for mask in self.masks}

    @property
    def count(self) -> int:
        """How many numbers of the model are masked."""
        return sum(
            math.prod(mask.shape) - math.prod(size - len(mask.dims.get(dim, ())) for dim, size in enumerate(mask.shape))
            for mask in self.masks
        )


def masks_of(model: nn.Module, groups: Sequence[UnitGroup], chosen: Mapping[str, Iterable[int]]) -> MaskSet:
    """Return the masks of the chosen units. Raises PruningRefused if there is no such group or unit."""
    units = {name: tuple(sorted(set(ones))) for name, ones in sorted(chosen.items())}
    units = {name: ones for name, ones in units.items() if ones}
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    gone = removed(groups, units).parameters
    return MaskSet(tuple(ParameterMask(path, shapes[path], dims) for path, dims in gone.items()), units)


class _MaskedSlice(NamedTuple):
    tensor: Tensor
    dim: int
    indices: Tensor


class HeldMasks:
    """Masks over the parameters of a model. They must be made anew if the model's parameters are replaced.

    `displaced`: the numbers that `apply_masks` set to 0, by a key of entry, path and dimension, for `release_masks`.
    """

    def __init__(self, model: nn.Module, masks: MaskSet, displaced: Mapping[str, Tensor] | None = None) -> None:
        """Change nothing. Raises PruningRefused if a mask does not fit the model."""
        self.masks = masks
        self.displaced = dict(displaced or {})
        self._places = list(_places(_checked(model, masks), masks))

    @torch.no_grad()
    def zero_gradients(self) -> None:
        """Set the gradients of masked coordinates to 0. Call it before the gradient norm is taken."""
        for parameter, dim, indices in self._places:
            if parameter.grad is not None:
                parameter.grad.index_fill_(dim, indices, 0.0)  # safety: masked-gradients-zeroed

    @torch.no_grad()
    def hold(self) -> None:
        """Set masked weights to 0. Call it after every update."""
        for parameter, dim, indices in self._places:
            parameter.index_fill_(dim, indices, 0.0)  # safety: masked-weights-assigned

    @torch.no_grad()
    def hold_copy(self, path: str, tensor: Tensor) -> None:
        """Set a copy of the parameter `path` to 0 where that is masked."""
        for mask in self.masks.masks:
            if mask.path == path:
                for _, dim, indices in _places({path: tensor}, MaskSet((mask,))):
                    tensor.index_fill_(dim, indices, 0.0)


@torch.no_grad()
def apply_masks(model: nn.Module, masks: MaskSet, owners: Sequence[Owner], average: Average | None = None) -> HeldMasks:
    """Set masked weights, gradients, moments and averages to 0, and return what holds the weights there.

    Raises PruningRefused, and has changed nothing, if a mask does not fit the model or an optimizer cannot be masked.
    """
    _checked(model, masks)  # safety: masks-fit-before-change
    places = _everywhere(model, masks, owners, average)
    displaced = {key: tensor.detach().index_select(dim, indices) for key, (tensor, dim, indices) in places.items()}
    for tensor, dim, indices in places.values():
        tensor.index_fill_(dim, indices, 0.0)  # safety: masked-moments-zeroed
    held = HeldMasks(model, masks, displaced)
    held.zero_gradients()
    return held


@torch.no_grad()
def release_masks(model: nn.Module, held: HeldMasks, owners: Sequence[Owner], average: Average | None = None) -> None:
    """Give masked weights, moments and averages the numbers that they had before the masks. All others stay.

    A masked unit would not learn again by itself: without weights it gets no gradient.
    """
    _checked(model, held.masks)
    for key, (tensor, dim, indices) in _everywhere(model, held.masks, owners, average).items():
        if key in held.displaced:
            tensor.index_copy_(dim, indices, held.displaced[key])


@torch.no_grad()
def check_only_grew(model: nn.Module, masks: MaskSet) -> None:
    """Raise PruningRefused unless each masked parameter only grew at its ends, so that its masked numbers are 0."""
    parameters = dict(model.named_parameters())
    for mask in masks.masks:
        parameter = parameters.get(mask.path)
        if parameter is None:
            raise PruningRefused(f"{mask.path} is masked, and the model has no such parameter any more")
        shape = tuple(parameter.shape)
        if len(shape) != len(mask.shape) or any(a > b for a, b in zip(mask.shape, shape, strict=True)):
            raise PruningRefused(f"{mask.path} is masked for the shape {mask.shape}, and has {shape} now")
        former = parameter[tuple(slice(0, size) for size in mask.shape)]
        for _, dim, indices in _places({mask.path: former}, MaskSet((mask,))):
            if former.index_select(dim, indices).count_nonzero():
                raise PruningRefused(f"{mask.path} is not 0 any more where it is masked")


@torch.no_grad()
def widen_masks(
    model: nn.Module,
    newest: MaskSet,
    everything: MaskSet,
    displaced: Mapping[str, Tensor],
    *,
    owners: Sequence[Owner],
    average: Average | None,
) -> dict[str, Tensor]:
    """Mask the numbers that the model has grown within masked units. Return `displaced`, those of `newest`, with what
    it had there.

    Call `check_only_grew` before it.
    """
    wider = {}
    for key, (tensor, dim, indices) in _everywhere(model, newest, owners, average).items():
        if key in displaced:
            wider[key] = tensor.index_select(dim, indices)
            wider[key][tuple(slice(0, size) for size in displaced[key].shape)] = displaced[key]
    for tensor, dim, indices in _everywhere(model, everything, owners, average).values():
        tensor.index_fill_(dim, indices, 0.0)
    return wider


def _everywhere(
    model: nn.Module, masks: MaskSet, owners: Sequence[Owner], average: Average | None
) -> dict[str, _MaskedSlice]:
    """Return all places that a mask covers by entry, path and dimension: weights, moments and averages."""
    parameters = dict(model.named_parameters())
    names = {id(parameter): name for name, parameter in parameters.items()}
    entries: list[tuple[str, Mapping[str, Tensor]]] = [("weight", parameters)]
    entries += [entry for owner in owners for entry in _moments(owner.optimizer, names, masks).items()]
    if average is not None:
        entries.append(("average", average.tensors))
    places = {}
    for entry, tensors in entries:
        for mask in masks.masks:
            for place in _places(tensors, MaskSet((mask,))) if mask.path in tensors else ():
                places[f"{entry}:{mask.path}:{place.dim}"] = place
    return places


def _places(tensors: Mapping[str, Tensor], masks: MaskSet) -> Iterator[_MaskedSlice]:
    for mask in masks.masks:
        tensor = tensors[mask.path]
        for dim, indices in mask.dims.items():
            yield _MaskedSlice(tensor, dim, torch.tensor(indices, device=tensor.device))


def _checked(model: nn.Module, masks: MaskSet) -> dict[str, Tensor]:
    """Return the masked parameters by path. Raises PruningRefused if one is missing or a mask does not fit it."""
    parameters: dict[str, Any] = dict(model.named_parameters())
    for mask in masks.masks:
        parameter = parameters.get(mask.path)
        if parameter is None:
            raise PruningRefused(f"the model has no parameter {mask.path!r} to mask")
        if tuple(parameter.shape) != mask.shape:
            raise PruningRefused(f"{mask.path} has shape {tuple(parameter.shape)}, its mask is for {mask.shape}")
        for dim, indices in mask.dims.items():
            if not 0 <= dim < len(mask.shape):
                raise PruningRefused(f"{mask.path} has {len(mask.shape)} dimensions, its mask names number {dim}")
            outside = [index for index in indices if not 0 <= index < mask.shape[dim]]
            if outside or list(indices) != sorted(set(indices)):
                raise PruningRefused(
                    f"{mask.path}: the indices of a mask ascend from 0 to {mask.shape[dim] - 1} in dimension {dim}, "
                    f"not {list(indices)[:8]}"
                )
            if len(indices) == mask.shape[dim]:
                raise PruningRefused(f"{mask.path}: its mask covers all of dimension {dim}")
    return {mask.path: parameters[mask.path] for mask in masks.masks}


def _moments(optimizer: Optimizer, names: Mapping[int, str], masks: MaskSet) -> dict[str, dict[str, Tensor]]:
    """Return the optimizer's state of masked parameters: for each entry the tensors by path."""
    masked = masks.coordinates
    found: dict[str, dict[str, Tensor]] = {}
    for group in optimizer.param_groups:
        paths = {names[id(one)]: one for one in group["params"] if names.get(id(one)) in masked}
        if not paths:
            continue
        try:
            kinds = kinds_of(optimizer)
        except TypeError as error:
            raise PruningRefused(f"{next(iter(paths))} cannot be masked: {error}") from error
        if isinstance(optimizer, CautiousAdamW) and group["caution"] and not group["live_mean"]:
            raise PruningRefused(
                f"{next(iter(paths))} cannot be masked: masked coordinates would enlarge cautious_adamw's steps; set "
                "optimizer.live_mean: true"
            )
        for path, parameter in paths.items():
            for key, value in optimizer.state.get(parameter, {}).items():
                if key in kinds and isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                    found.setdefault(key, {})[path] = value
    return found
