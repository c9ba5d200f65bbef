"""A plan: all that goes with a choice of units, as one text. With it units are masked and removed without a graph.

The analysis of a checkpoint makes it. An order carries it, a checkpoint keeps it, and the architecture ledger repeats a
compaction by it. So a boundary traces no model, and neither does a restart.

Promises: equal plans have equal texts: JSON with sorted keys. A text that is no plan is refused with a sentence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tolariad.trainer.pruning.inputs import described
from tolariad.trainer.pruning.masks import MaskSet, ParameterMask, check_only_grew
from tolariad.trainer.pruning.units import Coordinates, Fewer, PruningRefused, Removed, UnitGroup, removed

if TYPE_CHECKING:
    from torch import nn

_NumberedDims = tuple[tuple[str, int, int], ...]


class _Written(Struct, frozen=True, kw_only=True):
    """A plan as it is written.

    * `sets`: each set of indices once, as first index and length of every run.
    * `parameters`, `buffers`, `norms`: places, as (name, dimension, number of the set).
    * `fixed`: pairs of a group and the reason why its units can be masked but not removed.
    """

    structure: str
    sets: tuple[tuple[int, ...], ...]
    units: tuple[tuple[str, int], ...]
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    parameters: _NumberedDims
    buffers: _NumberedDims = ()
    norms: _NumberedDims = ()
    heads: tuple[Fewer, ...] = ()
    fixed: tuple[tuple[str, str], ...] = ()
    inputs: Any = None


_encoder: Final = msgspec.json.Encoder(order="sorted")
_decoder: Final = msgspec.json.Decoder(_Written)


class Plan(Struct, frozen=True, kw_only=True, dict=True):
    """The parts of the model that go with `units`, which are indices by name of their group, in the model as it was.

    * `structure`: the value of `structure_of` for that model.
    * `shapes`: the shape of each parameter that is masked.
    * `fixed`: for a group whose units can be masked but not removed, the reason.
    * `inputs`: the model's inputs, as `described` returns them.
    """

    structure: str
    units: dict[str, tuple[int, ...]]
    shapes: dict[str, tuple[int, ...]]
    gone: Removed
    fixed: dict[str, str] = {}
    inputs: Any = None

    @cached_property
    def masks(self) -> MaskSet:
        """The masks of these units."""
        gone = self.gone.parameters
        return MaskSet(tuple(ParameterMask(path, self.shapes[path], dims) for path, dims in gone.items()), self.units)

    @cached_property
    def text(self) -> str:
        """The plan as a JSON object."""
        sets = _Sets()
        written = _Written(
            structure=self.structure,
            units=tuple((name, sets.number(ones)) for name, ones in sorted(self.units.items())),
            shapes=tuple(sorted(self.shapes.items())),
            parameters=tuple(sets.places(self.gone.parameters)),
            buffers=tuple(sets.places(self.gone.buffers)),
            norms=tuple(sets.places(self.gone.norms)),
            heads=self.gone.heads,
            fixed=tuple(sorted(self.fixed.items())),
            inputs=self.inputs,
            sets=tuple(sets.known),
        )
        return _encoder.encode(written).decode()


def plan_of(
    model: nn.Module, groups: Sequence[UnitGroup], chosen: Mapping[str, Iterable[int]], inputs: tuple[Any, ...]
) -> Plan:
    """Return the plan of the chosen units. `inputs`: the model's positional arguments, those of one batch.

    Raises PruningRefused if there is no such group or unit, or if an input is of a kind that cannot be described.
    """
    units = {name: tuple(sorted(set(ones))) for name, ones in sorted(chosen.items())}
    units = {name: ones for name, ones in units.items() if ones}
    gone = removed(groups, units)
    shapes = _shapes_of(model)
    return Plan(
        structure=structure_of(model),
        units=units,
        shapes={path: shapes[path] for path in gone.parameters},
        gone=gone,
        fixed={group.name: group.fixed for group in groups if group.fixed and group.name in units},
        inputs=described({"arguments": tuple(inputs)}),
    )


def read_plan(text: str) -> Plan:
    """Return the plan of a text. Raises PruningRefused."""
    try:
        written = _decoder.decode(text)
        sets = [_indices(runs) for runs in written.sets]
        return Plan(
            structure=written.structure,
            units={name: sets[number] for name, number in written.units},
            shapes=dict(written.shapes),
            gone=Removed(
                _coordinates(written.parameters, sets),
                _coordinates(written.buffers, sets),
                _coordinates(written.norms, sets),
                written.heads,
            ),
            fixed=dict(written.fixed),
            inputs=written.inputs,
        )
    except (msgspec.DecodeError, IndexError) as error:
        raise PruningRefused(f"the text is no plan of units: {error}") from error


def joined(plans: Sequence[Plan], model: nn.Module) -> Plan:
    """Return the plan of all units of these plans, whose masks are in force in `model`. The oldest comes first."""
    shapes = _shapes_of(model)
    gone = Removed(
        _union(plan.gone.parameters for plan in plans),
        _union(plan.gone.buffers for plan in plans),
        _union(plan.gone.norms for plan in plans),
        tuple(one for plan in plans for one in plan.gone.heads),
    )
    units: dict[str, set[int]] = {}
    for plan in plans:
        for name, ones in plan.units.items():
            units.setdefault(name, set()).update(ones)
    return Plan(
        structure=structure_of(model),
        units={name: tuple(sorted(ones)) for name, ones in sorted(units.items())},
        shapes={path: shapes.get(path, ()) for path in gone.parameters},
        gone=gone._replace(heads=_summed(gone.heads)),
        fixed={name: why for plan in plans for name, why in plan.fixed.items()},
        inputs=plans[-1].inputs if plans else None,
    )


def widened(plan: Plan, model: nn.Module) -> Plan:
    """Return the plan for a model whose masked parameters have grown at their ends. Raises PruningRefused otherwise."""
    check_only_grew(model, plan.masks)
    shapes = _shapes_of(model)
    return replace(plan, shapes={path: shapes[path] for path in plan.shapes})


def structure_of(model: nn.Module) -> str:
    """Return the SHA-256 of names, shapes and dtypes of all parameters. A tied one counts under each of its names."""
    hasher = hashlib.sha256()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        hasher.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
    return hasher.hexdigest()


def _shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


class _Sets:
    """The sets of indices that a text holds, each once."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, ...], int] = {}

    def number(self, indices: tuple[int, ...]) -> int:
        """Return the number of a set, which ascends."""
        return self.known.setdefault(_runs(indices), len(self.known))

    def places(self, found: Coordinates) -> Iterator[tuple[str, int, int]]:
        for path, dims in sorted(found.items()):
            for dim, indices in sorted(dims.items()):
                yield path, dim, self.number(indices)


def _runs(indices: tuple[int, ...]) -> tuple[int, ...]:
    """Return first index and length of every run of ascending indices."""
    if not indices:
        return ()
    firsts = [indices[0], *(b for a, b in pairwise(indices) if b != a + 1)]
    lasts = [*(a for a, b in pairwise(indices) if b != a + 1), indices[-1]]
    return tuple(number for first, last in zip(firsts, lasts, strict=True) for number in (first, last - first + 1))


def _indices(runs: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(
        index for first, length in zip(runs[::2], runs[1::2], strict=False) for index in range(first, first + length)
    )


def _coordinates(places: _NumberedDims, sets: list[tuple[int, ...]]) -> Coordinates:
    found: Coordinates = {}
    for path, dim, number in places:
        found.setdefault(path, {})[dim] = sets[number]
    return found


def _union(each: Iterable[Coordinates]) -> Coordinates:
    found: dict[str, dict[int, set[int]]] = {}
    for coordinates in each:
        for path, dims in coordinates.items():
            for dim, indices in dims.items():
                found.setdefault(path, {}).setdefault(dim, set()).update(indices)
    return {
        path: {dim: tuple(sorted(indices)) for dim, indices in sorted(dims.items())}
        for path, dims in sorted(found.items())
    }


def _summed(heads: Iterable[Fewer]) -> tuple[Fewer, ...]:
    found: dict[tuple[str, str], Fewer] = {}
    for one in heads:
        before = found.get((one.module, one.attribute))
        found[one.module, one.attribute] = one if before is None else before._replace(gone=before.gone + one.gone)
    return tuple(found.values())
