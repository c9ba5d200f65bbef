"""Match the parameters of the new model with those of the old one, if no mapping is given.

Promises: the same Parameter object is the same parameter, under any name. Otherwise the qualified name decides, and a
shape that only grew is an expansion. Nothing is guessed: all ambiguous parameters are refused together, by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tolariad.trainer.optim.mapping import AmbiguousMapping, ParameterMapping

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor


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
