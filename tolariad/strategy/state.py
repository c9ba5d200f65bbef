"""The memory of a strategy, as bytes: msgpack of values that JSON can hold, at most 32 KiB.

Promises: `read_state` returns only None, booleans, numbers, texts, lists and dicts with text as keys. Nothing is
unpickled. A tuple comes back as a list. NaN and infinity are kept.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

STATE_BYTES_MAX: Final = 32 * 1024
_DEPTH_MAX: Final = 32


class StateRefused(ValueError):
    """This state cannot be kept or read. The text says why and what to do."""


def write_state(state: Any) -> bytes:
    """Return the bytes of a state. Raises StateRefused: not what JSON can hold, nested too deeply, too large."""
    _check(state, "state", _DEPTH_MAX)
    try:
        data = msgspec.msgpack.encode(state)
    except (OverflowError, UnicodeEncodeError) as error:
        raise StateRefused(f"state_dict() cannot be kept: {error}.") from error
    _check_size(data)
    return data


def read_state(data: bytes) -> Any:
    """Return the state. Raises StateRefused: damaged, too large, or with types that no state has."""
    _check_size(data)
    try:
        state = msgspec.msgpack.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise StateRefused(f"These {len(data)} bytes are no state of a strategy: {error}.") from error
    _check(state, "state", _DEPTH_MAX)
    return state


def _check_size(data: bytes) -> None:
    if len(data) > STATE_BYTES_MAX:
        raise StateRefused(
            f"state_dict() takes {len(data)} bytes; at most {STATE_BYTES_MAX} are allowed. Keep sums, not histories."
        )


def _check(value: Any, place: str, depth: int) -> None:
    if value is None or type(value) in (bool, int, float, str):
        return
    if depth == 0:
        raise StateRefused(f"state_dict() is nested deeper than {_DEPTH_MAX} levels.")
    if isinstance(value, dict):
        for key, inner in value.items():
            if type(key) is not str:
                raise StateRefused(f"{place} has the key {key!r}; keys must be texts.")
            _check(inner, f"{place}[{key!r}]", depth - 1)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            _check(inner, f"{place}[{number}]", depth - 1)
    else:
        raise StateRefused(
            f"{place} is of type {type(value).__name__}; a state holds None, booleans, numbers, texts, lists, dicts."
        )
