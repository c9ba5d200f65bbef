"""Encode nested plain data with tensors as msgpack and a table of tensors. Exact types, a closed set, no pickle.

None, bool, int, float, str, bytes and list are encoded as they are. A map in the msgpack is always a tag with one key.
`t` is a tuple, `d` a dict as pairs (any key, order kept), `o` an OrderedDict. `i` is an integer beyond 64 bits, `c`
complex, `n` a NumPy scalar, `a` a NumPy array, `x` a tensor. A tensor has its name in the table, and its strides if
they are not row-major. It also says whether it is on the CPU independent of the model. Promises: decode(encode(x))
equals x in values, types and order, and in which places hold the same tensor. Any other value is refused by its path.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
import torch

from tolariad.trainer.checkpoints.tensors import check_tensor, order_in_memory, place_of

_INT64_MIN, _UINT64_MAX = -(2**63), 2**64 - 1
_NUMPY_KINDS: Final = "biufc"
_DEPTH_MAX: Final = 64


class NotCapturable(Exception):
    """A value cannot be written to a checkpoint. The text names its path."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path


class _Encoder:
    """Walks one tree once, and collects its tensors by path."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._paths: dict[tuple[object, ...], str] = {}

    def encode(self, value: Any, path: str, depth: int = 0) -> Any:
        """Return the tagged form of `value`. Only exact types: a subclass would be decoded as its base class."""
        if depth > _DEPTH_MAX:
            raise NotCapturable(path, f"is nested deeper than {_DEPTH_MAX} levels; does it contain itself?")
        kind = type(value)
        if value is None or kind in {bool, float, bytes}:
            return value
        if kind is int:
            return value if _INT64_MIN <= value <= _UINT64_MAX else {"i": str(value)}
        if kind is str:
            return _checked_text(value, path)
        if kind is list:
            return self._items(value, path, depth)
        if kind is tuple:
            return {"t": self._items(value, path, depth)}
        if kind is dict or kind is OrderedDict:
            return {"d" if kind is dict else "o": self._pairs(value, path, depth)}
        return self._leaf(value, path)

    def _leaf(self, value: Any, path: str) -> Any:
        """Encode numbers and arrays of other libraries."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        if type(value) is complex:
            return {"c": [value.real, value.imag]}
        if isinstance(value, np.generic) and value.dtype.kind in _NUMPY_KINDS:
            return {"n": [value.dtype.str, value.tobytes()]}
        if type(value) is np.ndarray and value.dtype.kind in _NUMPY_KINDS:
            return {"a": [value.dtype.str, list(value.shape), value.tobytes()]}
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise NotCapturable(
            path, f"a {kind} cannot be written to a checkpoint; keep numbers, text, tensors, lists, dicts"
        )

    def _tensor(self, value: torch.Tensor, path: str) -> Any:
        try:
            check_tensor(value)
        except ValueError as error:
            raise NotCapturable(path, str(error)) from error
        # A tensor at several places is stored once, so that decoding gives one tensor again.
        path = self._paths.setdefault(place_of(value), path) if value.numel() else path
        self.tensors.setdefault(path, value.detach())
        strides = order_in_memory(value)
        return {"x": [path, value.device.type == "cpu", *([strides] if strides else [])]}

    def _items(self, values: Any, path: str, depth: int) -> list[Any]:
        return [self.encode(value, f"{path}.{index}", depth + 1) for index, value in enumerate(values)]

    def _pairs(self, value: Any, path: str, depth: int) -> list[Any]:
        pairs = []
        seen: set[str] = set()
        for key, item in value.items():
            # 1 and "1" may both be keys. Their paths must differ, because they name tensors.
            label = key if isinstance(key, str) else f"{key!r}"
            if label in seen:
                label = f"{key!r}:{type(key).__name__}"
            seen.add(label)
            below = f"{path}.{label}"
            pairs.append([self.encode(key, f"{below} (key)", depth + 1), self.encode(item, below, depth + 1)])
        return pairs


def _checked_text(value: str, path: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise NotCapturable(path, "text that is not valid Unicode cannot be written to a checkpoint") from error
    return value


def encode_tree(value: Any, name: str) -> tuple[bytes, dict[str, torch.Tensor]]:
    """Return `value` as msgpack, and its tensors by path. Each path begins with `name`. Raises NotCapturable."""
    encoder = _Encoder()
    tagged = encoder.encode(value, name)
    return msgspec.msgpack.encode(tagged), encoder.tensors


class Stored(NamedTuple):
    """A tensor of a tree as it was stored, and whether the original was on the CPU, and its strides."""

    tensor: torch.Tensor
    on_cpu: bool
    strides: list[int] | None

    def fits(self, live: Any, device: torch.device) -> bool:
        """Return whether it can be copied into `live`, with the same result as `made`."""
        return (
            isinstance(live, torch.Tensor)
            and (live.shape, live.dtype) == (self.tensor.shape, self.tensor.dtype)
            and live.device == self._device(device)
            and order_in_memory(live) == self.strides
            and (self.strides is not None or live.is_contiguous())
        )

    def made(self, device: torch.device) -> torch.Tensor:
        """Return a new tensor with the same values. If the original was not on the CPU, it is on `device`."""
        if self.strides is None:
            return self.tensor.to(self._device(device), copy=True)
        # Keep the strides: an optimizer may process a parameter and its moments in memory order.
        empty = torch.empty_strided(
            self.tensor.shape, self.strides, dtype=self.tensor.dtype, device=self._device(device)
        )
        return empty.copy_(self.tensor)

    def _device(self, device: torch.device) -> torch.device:
        return torch.device("cpu") if self.on_cpu else device


Given: TypeAlias = dict[int, torch.Tensor]


def made(value: Any, device: torch.device, given: Given | None = None) -> Any:
    """Return a copy of nested plain data: every `Stored` becomes a tensor, arrays are copied.

    `given` holds the tensor to use for a `Stored`, at all its places, by the `id` of the `Stored`.
    """
    given = {} if given is None else given
    match value:
        case Stored():
            tensor = given.get(id(value))
            if tensor is None:
                tensor = given[id(value)] = value.made(device)
            return tensor
        case dict():
            return type(value)((key, made(item, device, given)) for key, item in value.items())
        case list() | tuple():
            return type(value)(made(item, device, given) for item in value)
        case np.ndarray():
            return value.copy()
        case _:
            return value


def decode_tree(data: bytes, tensors: dict[str, torch.Tensor]) -> Any:
    """Decode `data`, with a `Stored` for each tensor. A tensor at several places becomes the same `Stored`."""
    return _decode(msgspec.msgpack.decode(data), tensors, {})


def _decode(node: Any, tensors: dict[str, torch.Tensor], met: dict[str, Stored]) -> Any:
    if isinstance(node, list):
        return [_decode(item, tensors, met) for item in node]
    if not isinstance(node, dict):
        return node
    ((tag, body),) = node.items()
    match tag:
        case "t":
            return tuple(_decode(item, tensors, met) for item in body)
        case "d":
            return {_decode(k, tensors, met): _decode(v, tensors, met) for k, v in body}
        case "o":
            return OrderedDict((_decode(k, tensors, met), _decode(v, tensors, met)) for k, v in body)
        case "x":
            return met.setdefault(body[0], Stored(tensors[body[0]], body[1], body[2] if body[2:] else None))
        case _:
            return _decode_leaf(tag, body)


def _decode_leaf(tag: str, body: Any) -> Any:
    match tag:
        case "i":
            return int(body)
        case "c":
            return complex(*body)
        case "n":
            return np.frombuffer(body[1], np.dtype(body[0]))[0]
        case "a":
            return np.frombuffer(body[2], np.dtype(body[0])).reshape(body[1]).copy()
        case _:
            raise ValueError(f"unknown tag {tag!r} in a checkpoint's state; it was written by a newer version")
