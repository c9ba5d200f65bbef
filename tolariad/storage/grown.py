"""How the model of a checkpoint differs for good from the one that the task builds, as its state records it.

Seeds have become a part of it, and compactions have removed channels. The state is a tree of tagged msgpack
(`trainer/checkpoints/tree.py` describes the tags). Only plain values are read. Promise: what an exported file says is
enough to build the model again (`tolariad.trainer.seeds.regrow`, `tolariad.trainer.pruning.shrink`).
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from tolariad.core.calc.pruning.ledger import COMPACT
from tolariad.core.calc.seeds.ledger import GERMINATE
from tolariad.core.calc.seeds.stages import Stage


class Fossil(msgspec.Struct, frozen=True):
    """A seed that is a permanent part of the model. The names of its tensors begin with `prefix`.

    Its module was built from `blueprint`, `parameters`, `example` and `dtype`.
    """

    slot: str
    prefix: str
    blueprint: str
    parameters: dict[str, float]
    example: list[int]
    dtype: str


def fossils(state: bytes) -> tuple[Fossil, ...]:
    """Return the seeds of a checkpoint's state that are fossilised. Raises ValueError if it is no such state."""
    try:
        tree = _plain(msgspec.msgpack.decode(state))
        slots = tree.get("seeds", {}).get("slots", {})
        grown = {name: one for name, one in slots.items() if one["stage"] == Stage.FOSSILIZED}
        built = [json.loads(arguments) for name, arguments, *_ in tree.get("architecture", ()) if name == GERMINATE]
        # The newest germination of a slot is the one that is there.
        newest = {one["slot"]: one for one in built}
        of_seed = ("blueprint", "parameters", "example", "dtype")
        found = [
            {"slot": name, "prefix": one["prefix"], **{field: newest[name][field] for field in of_seed}}
            for name, one in grown.items()
        ]
        return msgspec.convert(found, tuple[Fossil, ...])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it does not say how its seeds were built: {error!r}") from error


def compactions(state: bytes) -> tuple[str, ...]:
    """Return what each compaction of a checkpoint's model has removed. Raises ValueError if it is no such state."""
    try:
        tree = _plain(msgspec.msgpack.decode(state))
        found = [arguments for name, arguments, *_ in tree.get("architecture", ()) if name == COMPACT]
        return msgspec.convert(found, tuple[str, ...])
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"it does not say which channels were removed: {error!r}") from error


_SEQUENCE: Final = "t"
_PAIRS: Final = ("d", "o")


def _plain(node: Any) -> Any:
    """Return a tagged tree without its tags. A tensor or an array, which no caller needs, becomes its raw bytes."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    ((tag, body),) = node.items()
    if tag in _PAIRS:
        return {key: _plain(item) for key, item in ((_key(one), item) for one, item in body)}
    return [_plain(item) for item in body] if tag == _SEQUENCE else body


def _key(node: Any) -> Any:
    return node if not isinstance(node, dict) else str(node)
