"""The heads of attention layers as units: rows of queries, keys and values, and the columns that read them.

Promises: a layer is recognised by its parts. `verify` then shows by numbers that rows and columns are those of the same
head.

torch's MultiheadAttention can be masked but not made smaller: it computes the size of a head from its width and
the number of heads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

from torch import nn

from tolariad.core.pruning.budget import UnitKind
from tolariad.trainer.pruning.units import Role, TensorSlice, UnitGroup

_COUNTS: Final = ("num_heads", "n_heads", "n_head", "heads")
_WIDTHS: Final = ("attn_dim", "inner_dim", "all_head_size")
_FUSED: Final = (("qkv", "proj"), ("in_proj", "out_proj"))
_SPLIT: Final = (
    ("q_proj", "k_proj", "v_proj", "out_proj"),
    ("q_proj", "k_proj", "v_proj", "o_proj"),
    ("query", "key", "value", "out"),
    ("q", "k", "v", "out"),
    ("q", "k", "v", "o"),
)


class Heads(NamedTuple):
    """The heads of one attention layer. `values`: the slices of the rows that compute values."""

    group: UnitGroup
    values: tuple[TensorSlice, ...]


class _Rows(NamedTuple):
    """The rows of queries, keys or values: from `start` on, one head after the other."""

    weight: Any
    bias: Any
    start: int


class _Layout(NamedTuple):
    """An attention layer. `name`: of the part that holds its rows, relative to the layer; "" for the layer itself."""

    name: str
    heads: int
    rows: Sequence[_Rows]
    columns: Any
    fixed: str = ""


def find_heads(model: nn.Module, protected: Collection[str] = ()) -> list[Heads]:
    """Return the attention layers whose parts are known, without those that touch a protected name."""
    users = Counter(id(one) for _, one in model.named_parameters(remove_duplicate=False))
    names = {id(one): name for name, one in model.named_parameters() if users[id(one)] == 1}
    found = []
    for path, module in model.named_modules():
        layout = _layout(module)
        made = None if layout is None else _heads(path, module, layout, names)
        if made is not None and not _touches(made.group, protected):
            found.append(made)
    return found


def _touches(group: UnitGroup, protected: Collection[str]) -> bool:
    return any(one.path == name or one.path.startswith(f"{name}.") for one in group.slices for name in protected)


def _layout(module: nn.Module) -> _Layout | None:
    """Return the parts of an attention layer; None if the module is none that is known."""
    if isinstance(module, nn.MultiheadAttention):
        # Without a common weight, queries, keys and values have widths of their own.
        if "in_proj_bias" not in module._parameters or module._parameters["in_proj_weight"] is None:  # noqa: SLF001
            return None
        rows = [_Rows(module.in_proj_weight, module.in_proj_bias, part * module.embed_dim) for part in range(3)]
        why = "torch's MultiheadAttention computes the size of a head from its width"
        return _Layout("", module.num_heads, rows, module.out_proj.weight, why)
    heads = next((getattr(module, one) for one in _COUNTS if isinstance(getattr(module, one, None), int)), 0)
    parts = {name: one for name, one in module.named_children() if isinstance(one, nn.Linear)}
    for rows_of, reads in _FUSED:
        if heads and rows_of in parts and reads in parts:
            one = parts[rows_of]
            rows = [_Rows(one.weight, one.bias, part * one.out_features // 3) for part in range(3)]
            return _Layout(rows_of, heads, rows, parts[reads].weight)
    for *three, reads in _SPLIT:
        if heads and reads in parts and all(one in parts for one in three):
            rows = [_Rows(parts[one].weight, parts[one].bias, 0) for one in three]
            return _Layout(three[0], heads, rows, parts[reads].weight)
    return None


def _heads(path: str, module: nn.Module, layout: _Layout, names: dict[int, str]) -> Heads | None:
    """Return the heads of the layer; None if its sizes do not fit together or a parameter is tied or computed."""
    width = layout.columns.shape[1]
    held = [one for rows in layout.rows for one in (rows.weight, rows.bias) if one is not None]
    fits = all(rows.start + width <= rows.weight.shape[0] for rows in layout.rows)
    if not fits or width % layout.heads or any(id(one) not in names for one in (*held, layout.columns)):
        return None
    rows = [
        TensorSlice(names[id(one)], 0, _units(part.start, width // layout.heads, layout.heads), Role.PRODUCES)
        for part in layout.rows
        for one in (part.weight, part.bias)
        if one is not None
    ]
    of_values = sum(one is not None for one in layout.rows[-1][:2])
    columns = TensorSlice(names[id(layout.columns)], 1, _units(0, width // layout.heads, layout.heads), Role.READS)
    counts = {**dict.fromkeys(_COUNTS, layout.heads), **dict.fromkeys(_WIDTHS, width)}
    group = UnitGroup(
        name=".".join(one for one in (path, layout.name) if one),
        kind=UnitKind.HEAD,
        channels=width // layout.heads,
        slices=(*rows, columns),
        module=path,
        attributes=tuple(name for name, count in counts.items() if getattr(module, name, None) == count),
        fixed=layout.fixed,
    )
    return Heads(group, tuple(rows[-of_values:]))


def _units(start: int, size: int, heads: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(range(start + head * size, start + (head + 1) * size)) for head in range(heads))
