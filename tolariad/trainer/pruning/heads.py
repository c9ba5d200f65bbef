"""The heads of attention layers as units: rows of queries, keys and values, and the columns that read them.

Promises: a layer is recognised by its parts. `verify` then shows by numbers that rows and columns are those of the same
head.

torch's MultiheadAttention can be masked but not made smaller: it computes the size of a head from its width and
the number of heads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from torch import nn

from tolariad.core.calc.pruning.budget import UnitKind
from tolariad.trainer.pruning.modules import linear_sides
from tolariad.trainer.pruning.units import Role, TensorSlice, UnitGroup
from tolariad.trainer.torch_private.modules import parameters_of

_COUNTS: Final = ("num_heads", "n_heads", "n_head", "heads", "num_attention_heads")
_KEY_COUNTS: Final = ("num_key_value_heads", "num_kv_heads", "n_kv_heads")
_SIZES: Final = ("head_dim", "attention_head_size")
_WIDTHS: Final = ("attn_dim", "inner_dim", "all_head_size", "split_size")
_FUSED: Final = ("qkv", "in_proj", "c_attn", "query_key_value", "Wqkv")
# Each guess costs a trial.
_GUESSES_MAX: Final = 4


class Heads(NamedTuple):
    """The heads of one attention layer. `values`: the slices of the rows that compute values."""

    group: UnitGroup
    values: tuple[TensorSlice, ...]


class _Part(NamedTuple):
    """A side of a layer: its tensors with the dimension of this side. The first head begins at `start`."""

    tensors: Sequence[tuple[Any, int]]
    size: int
    start: int = 0


class _Layout(NamedTuple):
    """An attention layer.

    * `name`: the part that holds the layer's rows, by its name within the layer; "" for the layer itself.
    * `heads`: the number of query heads.
    * `units`: the number of units that can be pruned; fewer than `heads` if several query heads share one of keys and
      values.
    """

    name: str
    heads: int
    units: int
    rows: Sequence[_Part]
    columns: _Part
    fixed: str = ""


def find_heads(model: nn.Module, protected: Collection[str] = ()) -> list[Heads]:
    """Return the attention layers whose parts are known, without those that touch a protected name.

    If several layers may read the heads, there is a guess for each, with the same name.
    """
    users = Counter(id(one) for _, one in model.named_parameters(remove_duplicate=False))
    names = {id(one): name for name, one in model.named_parameters() if users[id(one)] == 1}
    found = []
    for path, module in model.named_modules():
        around = model.get_submodule(path.rpartition(".")[0])
        guesses = (_heads(path, module, layout, names) for layout in _layouts(module, around))
        found += [one for one in guesses if one is not None and not _touches(one.group, protected)]
    return found


def _touches(group: UnitGroup, protected: Collection[str]) -> bool:
    return any(one.path == name or one.path.startswith(f"{name}.") for one in group.slices for name in protected)


def _layouts(module: nn.Module, around: nn.Module) -> Iterator[_Layout]:
    """Yield the parts of an attention layer: once for each layer that may read its heads. `around` contains it."""
    if isinstance(module, nn.MultiheadAttention):
        # Without a common weight, queries, keys and values have widths of their own.
        own = parameters_of(module)
        computes_bias = getattr(module, "in_proj_bias", None) is not None and "in_proj_bias" not in own
        if own.get("in_proj_weight") is not None and not computes_bias:
            width = module.embed_dim
            tensors = _held(module.in_proj_weight, 0, module.in_proj_bias)
            rows = [_Part(tensors, width, part * width) for part in range(3)]
            why = "torch's MultiheadAttention computes the size of a head from its width"
            read = _Part([(module.out_proj.weight, 1)], width)
            yield _Layout("", module.num_heads, module.num_heads, rows, read, why)
        return
    parts = {name: one for name, one in module.named_children() if linear_sides(one)}
    names, rows = _rows(parts)
    size = _count(module, _SIZES)
    if not names or not (heads := _count(module, _COUNTS) or (rows[0].size // size if size else 0)):
        return
    width = rows[0].size
    of_rows = [parts[name] for name in names]
    for scope in (module, around):
        # BERT's output layer is in a module beside its attention.
        readers = [one for one in scope.modules() if one not in of_rows and linear_sides(one)]
        columns = [one for one in map(_columns, readers) if one.size == width]
        for one in columns[:_GUESSES_MAX]:
            yield _Layout(names[0], heads, heads * rows[-1].size // width, rows, one)
        if columns:
            return


def _count(module: nn.Module, names: Sequence[str]) -> int:
    return next((count for name in names if type(count := getattr(module, name, None)) is int and count > 0), 0)


def _rows(parts: Mapping[str, nn.Module]) -> tuple[list[str], list[_Part]]:
    """Return the names of the layers that compute queries, keys and values, and their rows; empty if there are none."""
    each = [[name for name in parts if name.removeprefix("to_").startswith(letter)] for letter in "qkv"]
    fused = [name for name in parts if name in _FUSED]
    if len(fused) == 1:
        tensors, size = _outputs(parts[fused[0]])
        return fused, [_Part(tensors, size // 3, part * (size // 3)) for part in range(3)]
    if all(len(names) == 1 for names in each):
        three = [names[0] for names in each]
        return three, [_Part(*_outputs(parts[name])) for name in three]
    return [], []


def _outputs(layer: Any) -> tuple[list[tuple[Any, int]], int]:
    dim, _ = linear_sides(layer) or (0, 1)
    return _held(layer.weight, dim, layer.bias), layer.weight.shape[dim]


def _held(weight: Any, dim: int, bias: Any) -> list[tuple[Any, int]]:
    return [(weight, dim)] if bias is None else [(weight, dim), (bias, 0)]


def _columns(layer: Any) -> _Part:
    _, dim = linear_sides(layer) or (0, 1)
    return _Part([(layer.weight, dim)], layer.weight.shape[dim])


def _heads(path: str, module: nn.Module, layout: _Layout, names: dict[int, str]) -> Heads | None:
    """Return the heads of the layer; None if its sizes do not fit together or a parameter is tied or computed."""
    sides, units, width = [*layout.rows, layout.columns], layout.units, layout.columns.size
    if units < 2 or any(side.size % units for side in sides):
        return None
    if any(id(tensor) not in names for side in sides for tensor, _ in side.tensors):
        return None

    def slices(side: _Part, role: Role) -> list[TensorSlice]:
        indices = _units(side.start, side.size // units, units)
        return [TensorSlice(names[id(tensor)], dim, indices, role) for tensor, dim in side.tensors]

    *others, values = (slices(side, Role.PRODUCES) for side in layout.rows)
    counts = {
        **dict.fromkeys(_COUNTS, layout.heads),
        **dict.fromkeys(_KEY_COUNTS, units),
        **dict.fromkeys(_WIDTHS, width),
    }
    group = UnitGroup(
        name=".".join(one for one in (path, layout.name) if one),
        kind=UnitKind.HEAD,
        channels=width // units,
        slices=(*(one for side in others for one in side), *values, *slices(layout.columns, Role.READS)),
        module=path,
        attributes=tuple(name for name, count in counts.items() if getattr(module, name, None) == count),
        fixed=layout.fixed,
    )
    return Heads(group, tuple(values))


def _units(start: int, size: int, heads: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(range(start + head * size, start + (head + 1) * size)) for head in range(heads))
