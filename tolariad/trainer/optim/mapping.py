"""Mappings from a parameter of the old architecture to one of the new: given ones are checked, others are found.

Promises: the same Parameter object is the same parameter, under any name. Otherwise the qualified name decides, and a
shape that only grew is an expansion. Nothing is guessed: all ambiguous parameters are refused together, by name, and
the message says what is missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

Shape: TypeAlias = tuple[int, ...]
# By dimension: the old index for each index of the new tensor, or FRESH for a new unit.
Indices: TypeAlias = Mapping[int, Sequence[int]]
FRESH: Final = -1
TYPES: Final = ("identity", "expand", "contract", "permute", "reshape", "reset")


class AmbiguousMapping(ValueError):
    """Names and shapes do not determine a parameter's origin. The message names it and says what to pass."""


@dataclass(frozen=True)
class ParameterMapping:
    """The mapping of one parameter from the old model to the new one (source document 000).

    `old_id`, `new_id`: qualified names. `mapping_type`:

    * `identity`: the same shape, the same state, bit for bit.
    * `expand`: no dimension shrinks. Old units come first, new ones after them, unless `keep={dim: indices}` is given.
      It names, for each new index, the old index to copy, or -1 for a new unit.
    * `contract`: `keep={dim: indices}` names the units that stay, in order.
    * `permute`: `order=(dims...)` as `torch.permute`, or `order={dim: indices}` for the units of a dimension.
    * `reshape`: the same elements in another shape; reset if their number differs.
    * `reset`: no state is carried over.

    `scale`: the factor of the copies' gradient relative to the original's (Net2Net's alpha): one number, or {dim: a
    number for each new index}. First moments are multiplied by it, second moments by its square. Raises ValueError if
    the mapping is impossible.
    """

    old_id: str
    new_id: str
    old_shape: Shape
    new_shape: Shape
    mapping_type: str
    _: KW_ONLY
    keep: Indices | None = None
    order: Sequence[int] | Indices | None = None
    scale: float | Mapping[int, Sequence[float]] = 1.0

    def __post_init__(self) -> None:
        # Convert: shapes come as torch.Size, lists, or numbers of other libraries.
        object.__setattr__(self, "old_shape", tuple(int(size) for size in self.old_shape))
        object.__setattr__(self, "new_shape", tuple(int(size) for size in self.new_shape))
        _check(self)

    @property
    def carries(self) -> bool:
        """Whether any of the old state is carried over."""
        if self.mapping_type == "reshape":
            return math.prod(self.old_shape) == math.prod(self.new_shape)
        return self.mapping_type != "reset"

    def indices(self, dim: int) -> Sequence[int] | None:
        """Return the old index for each index of dimension `dim`; None if the dimension does not change."""
        given = self.order if self.mapping_type == "permute" else self.keep
        if isinstance(given, Mapping) and dim in given:
            return given[dim]
        old, new = self.old_shape[dim], self.new_shape[dim]
        return None if old == new else [*range(old), *[FRESH] * (new - old)]

    def __str__(self) -> str:
        name = self.old_id if self.old_id == self.new_id else f"{self.old_id} -> {self.new_id}"
        return f"{self.mapping_type} {name} {self.old_shape} -> {self.new_shape}"


def _check(mapping: ParameterMapping) -> None:
    kind, old, new = mapping.mapping_type, mapping.old_shape, mapping.new_shape
    if kind not in TYPES:
        raise ValueError(f"{mapping.new_id}: mapping_type {kind!r} is none of {', '.join(TYPES)}")
    if mapping.keep is not None and kind not in {"expand", "contract"}:
        raise ValueError(f"{mapping}: keep belongs to expand and contract")
    if mapping.order is not None and kind != "permute":
        raise ValueError(f"{mapping}: order belongs to permute")
    match kind:
        case "identity" if old != new or mapping.scale != 1.0:
            raise ValueError(f"{mapping}: an identity has one shape and no scale")
        case "expand" | "contract" if len(old) != len(new):
            raise ValueError(f"{mapping}: {kind} keeps the number of dimensions; use reshape or reset")
        case "expand" if mapping.keep is None and any(a > b for a, b in zip(old, new, strict=True)):
            raise ValueError(f"{mapping}: a dimension shrinks; say with keep which of its units stay")
        case "contract" if mapping.keep is None:
            raise AmbiguousMapping(f"{mapping}: which units stay? pass keep={{dim: indices}}")
        case "permute":
            _check_order(mapping)
    _check_indices(mapping)
    _check_scale(mapping)


def _check_order(mapping: ParameterMapping) -> None:
    old, new, order = mapping.old_shape, mapping.new_shape, mapping.order
    if order is None:
        raise AmbiguousMapping(f"{mapping}: in which order? pass order=(dims...) or order={{dim: indices}}")
    if isinstance(order, Mapping):
        fits = old == new and all(
            sorted(order[dim]) == list(range(size)) for dim, size in enumerate(old) if dim in order
        )
    else:
        fits = sorted(order) == list(range(len(old))) and tuple(old[dim] for dim in order) == new
    if not fits:
        raise ValueError(f"{mapping}: order {order} is no permutation that gives this shape")


def _check_indices(mapping: ParameterMapping) -> None:
    for dim, indices in (mapping.keep or {}).items():
        if not 0 <= dim < len(mapping.old_shape):
            raise ValueError(f"{mapping}: keep names dimension {dim}; there are {len(mapping.old_shape)}")
        old, new = mapping.old_shape[dim], mapping.new_shape[dim]
        least = FRESH if mapping.mapping_type == "expand" else 0
        if len(indices) != new or not all(least <= index < old for index in indices):
            raise ValueError(
                f"{mapping}: keep[{dim}] must hold {new} indices of {least} to {old - 1}, not {list(indices)[:8]}"
            )
        if mapping.mapping_type == "contract" and len(set(indices)) != len(indices):
            raise ValueError(f"{mapping}: keep[{dim}] names a unit twice; copies are expand's")
    if mapping.mapping_type == "contract":
        for dim, (old, new) in enumerate(zip(mapping.old_shape, mapping.new_shape, strict=True)):
            if old != new and dim not in (mapping.keep or {}):
                raise AmbiguousMapping(f"{mapping}: dimension {dim} changes; which units stay? pass keep[{dim}]")


def _check_scale(mapping: ParameterMapping) -> None:
    if not isinstance(mapping.scale, Mapping):
        if not math.isfinite(mapping.scale):
            raise ValueError(f"{mapping}: scale must be finite, not {mapping.scale}")
        return
    if mapping.mapping_type in {"reshape", "reset", "identity"}:
        raise ValueError(f"{mapping}: a scale by dimension belongs to expand, contract and permute")
    for dim, factors in mapping.scale.items():
        fits = 0 <= dim < len(mapping.new_shape) and len(factors) == mapping.new_shape[dim]
        if not fits or not all(math.isfinite(factor) for factor in factors):
            raise ValueError(f"{mapping}: scale[{dim}] must hold one finite number for each index of that dimension")


def match(
    old: Mapping[str, Tensor], new: Mapping[str, Tensor], given: Sequence[ParameterMapping]
) -> list[ParameterMapping]:
    """Return a mapping for every parameter of `new` that comes from one of `old`; given mappings come first.

    Raises ValueError if a given mapping does not fit, AmbiguousMapping if a mapping must be given.
    """
    _check_given(old, new, given)
    found = list(given)
    taken = {mapping.old_id for mapping in given}
    settled = {mapping.new_id for mapping in given}
    objects = {id(tensor): name for name, tensor in old.items()}
    for name, tensor in new.items():
        came_from = objects.get(id(tensor))
        if name not in settled and came_from is not None:
            found.append(_identity(came_from, name, tensor))
            settled.add(name)
            taken.add(came_from)
    unclear = []
    for name, tensor in new.items():
        if name in settled or name not in old or name in taken:
            continue
        mapping = _by_name(name, old[name], tensor)
        if mapping is None:
            shapes = f"{tuple(old[name].shape)} -> {tuple(tensor.shape)}"
            unclear.append(f"{name} {shapes}: contract (which units stay?), permute, reshape or reset?")
            continue
        found.append(mapping)
        settled.add(name)
        taken.add(name)
    unclear += _renamed(old, new, taken, settled)
    if unclear:
        raise AmbiguousMapping("pass a ParameterMapping for: " + "; ".join(unclear))
    return found


def _identity(old_name: str, name: str, tensor: Tensor) -> ParameterMapping:
    shape = tuple(tensor.shape)
    return ParameterMapping(old_name, name, shape, shape, "identity")


def _by_name(name: str, before: Tensor, tensor: Tensor) -> ParameterMapping | None:
    old, new = tuple(before.shape), tuple(tensor.shape)
    if old == new:
        return ParameterMapping(name, name, old, new, "identity")
    if len(old) == len(new) and all(a <= b for a, b in zip(old, new, strict=True)):
        return ParameterMapping(name, name, old, new, "expand")
    return None


def _renamed(old: Mapping[str, Tensor], new: Mapping[str, Tensor], taken: set[str], settled: set[str]) -> list[str]:
    """Return the new names that may be renamed: they have no origin, and the shape of an old one that is gone."""
    gone: dict[tuple[int, ...], str] = {}
    for name, tensor in old.items():
        if name not in taken and name not in new:
            gone.setdefault(tuple(tensor.shape), name)
    return [
        f"{name} {tuple(tensor.shape)}: is it {gone[tuple(tensor.shape)]} renamed (identity), or new (reset)?"
        for name, tensor in new.items()
        if name not in settled and name not in old and tuple(tensor.shape) in gone
    ]


def _check_given(old: Mapping[str, Tensor], new: Mapping[str, Tensor], given: Sequence[ParameterMapping]) -> None:
    seen = set()
    for mapping in given:
        for id_, shape, held, which in (
            (mapping.old_id, mapping.old_shape, old, "old"),
            (mapping.new_id, mapping.new_shape, new, "new"),
        ):
            if id_ not in held:
                raise ValueError(f"{mapping}: the {which} model has no trained parameter {id_!r}")
            if tuple(held[id_].shape) != shape:
                raise ValueError(f"{mapping}: in the {which} model {id_!r} has shape {tuple(held[id_].shape)}")
        if mapping.new_id in seen:
            raise ValueError(f"{mapping}: {mapping.new_id!r} is given twice")
        seen.add(mapping.new_id)
