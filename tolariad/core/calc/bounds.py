"""The bounds of numbers and texts from outside, and the check of a whole message against them.

Promises: a message that `refusal` accepts can be written into an event, and its counts stay exact for readers of JSON.
The check is derived from the types, so a new order, report or field is checked without further code. Events are not
checked when they are read: journals of older versions must stay readable.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Meta, inspect

# JSON readers in other languages keep integers exact up to here.
COUNT_MAX: Final = 2**53 - 1
# An epoch times the steps of an epoch must stay a number that an event can hold.
EPOCH_MAX: Final = 2**31 - 1
SECONDS_MAX: Final = 1e9
# The metric of a step that counts its tokens.
TOKENS: Final = "tokens"
_TOKENS_MAX: Final = 2.0**62
NAME_CHARACTERS_MAX: Final = 1024
# The names of step metrics that a run may have.
METRICS_MAX: Final = 64
# The files of a program of which a run remembers the content.
CODE_FILES_MAX: Final = 256
# The libraries of a program of which a run remembers the version.
LIBRARIES_MAX: Final = 256
NOTE_CHARACTERS_MAX: Final = 4096
ID_CHARACTERS_MAX: Final = 128
# For a text without a unit, such as a traceback.
TEXT_CHARACTERS_MAX: Final = 1 << 20
_SHOWN_CHARACTERS_MAX: Final = 60
_SHOWN_BITS_MAX: Final = 180


def unit(what: str, least: float | None = None, most: float | None = None) -> Meta:
    """Return the annotation of a field: its unit, and its least and greatest value. For a text, of its length."""
    return Meta(description=what, extra={"least": least, "most": most})


_Check: TypeAlias = Callable[[Any, str], str | None]


def refusal(message: msgspec.Struct) -> str | None:
    """Return the sentence for the first value of `message` that is out of its bounds, or None."""
    return _struct_check(type(message))(message, "")


def shown(value: Any) -> str:
    """Return a value for use in a sentence: short, and only with characters that can be encoded."""
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS_MAX:
        # Python refuses to print a number of more than 4300 digits.
        return f"a number of about {math.floor(value.bit_length() * math.log10(2)) + 1} digits"
    try:
        text = repr(value)
    except ValueError:
        text = f"a {type(value).__name__} that holds a number of thousands of digits"
    text = text if text.isprintable() else ascii(value)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else f"{text[: _SHOWN_CHARACTERS_MAX - 3]}..."


def text_refusal(text: str, most: int, name: str) -> str | None:
    """Return the sentence for a text that is longer than `most` characters or not Unicode, or None."""
    if len(text) > most:
        return f"{name} must have at most {most} characters, this one has {len(text)}"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"{name} is no Unicode text: character {error.start + 1} is half of a surrogate pair"
    return None


@functools.cache
def _struct_check(kind: type[msgspec.Struct]) -> _Check:
    info = inspect.type_info(kind)
    fields = info.fields if isinstance(info, inspect.StructType) else ()
    checks = tuple((field.name, _check_of(field.type, {})[1]) for field in fields)

    def check(value: Any, path: str) -> str | None:
        before = f"{path}." if path else ""
        for name, inner in checks:
            if (why := inner(getattr(value, name), before + name)) is not None:
                return why
        return None

    return check


def _nested_check(value: msgspec.Struct, path: str) -> str | None:
    return _struct_check(type(value))(value, path)


def _check_of(kind: inspect.Type, bounds: dict[str, Any]) -> tuple[Any, _Check]:
    """Return the classes of the values of a type, and the check of a value."""
    match kind:
        case inspect.Metadata():
            return _check_of(kind.type, kind.extra or bounds)
        case inspect.UnionType():
            return object, _one_of(*(_check_of(one, bounds) for one in kind.types))
        case inspect.StructType():
            # Defer the call of `_struct_check`: a type may contain itself.
            return kind.cls, _one_of((kind.cls, _nested_check))
        case inspect.VarTupleType():
            return tuple, _items_check(_check_of(kind.item_type, bounds)[1])
        case inspect.DictType():
            return dict, _map_check(_check_of(kind.key_type, {})[1], _check_of(kind.value_type, bounds)[1])
        case inspect.IntType():
            return int, functools.partial(_whole, bounds.get("least", -COUNT_MAX), bounds.get("most", COUNT_MAX))
        case inspect.FloatType():
            return (float, int), functools.partial(_number, bounds.get("least"), bounds.get("most"))
        case inspect.StrType():
            return str, functools.partial(_text, bounds.get("most") or TEXT_CHARACTERS_MAX)
        case inspect.LiteralType():
            return str, functools.partial(_listed, frozenset(kind.values))
        case inspect.EnumType():
            return kind.cls, _one_of((kind.cls, _anything))
        case inspect.BoolType():
            return bool, _one_of((bool, _anything))
        case inspect.NoneType():
            return type(None), _one_of((type(None), _anything))
        case _:
            raise TypeError(f"no bounds are known for {kind}; write a check of it in core/calc/bounds.py")


def _anything(_value: Any, _path: str) -> None:
    return None


def _is(value: Any, classes: Any) -> bool:
    # Python's bool is an int, but a count must not be one.
    return isinstance(value, classes) and (classes is bool or not isinstance(value, bool))


def _one_of(*options: tuple[Any, _Check]) -> _Check:
    def check(value: Any, path: str) -> str | None:
        for classes, inner in options:
            if _is(value, classes):
                return inner(value, path)
        return _wrong(path, "of another type", value)

    return check


def _listed(values: frozenset[object], value: Any, path: str) -> str | None:
    if isinstance(value, str) and value in values:
        return None
    return _wrong(path, f"one of {', '.join(sorted(map(str, values)))}", value)


def _items_check(inner: _Check) -> _Check:
    def check(value: Any, path: str) -> str | None:
        if not isinstance(value, tuple | list):
            return _wrong(path, "a list", value)
        return next((why for n, one in enumerate(value) if (why := inner(one, f"{path}[{n}]")) is not None), None)

    return check


def _map_check(keys: _Check, values: _Check) -> _Check:
    def check(value: Any, path: str) -> str | None:
        if not isinstance(value, dict):
            return _wrong(path, "a mapping", value)
        for key, one in value.items():
            why = keys(key, f"a name in {path}") or values(one, f"{path}.{shown(key)}")
            if why is not None:
                return why
        return None

    return check


def _whole(least: int, most: int, value: Any, path: str) -> str | None:
    if _is(value, int) and least <= value <= most:
        return None
    return _wrong(path, f"a whole number from {least} to {most}", value)


def _number(least: float | None, most: float | None, value: Any, path: str) -> str | None:
    if _is(value, float) or (_is(value, int) and -(2**63) <= value < 2**64):
        if least is None or most is None or least <= value <= most:
            return None
        return _wrong(path, f"a number from {least:g} to {most:g}", value)
    return _wrong(path, "a number", value)


def _text(most: int, value: Any, path: str) -> str | None:
    return text_refusal(value, most, path) if isinstance(value, str) else _wrong(path, "a text", value)


def _wrong(path: str, wanted: str, value: Any) -> str:
    return f"{path} must be {wanted}, not {shown(value)}"


def token_count(value: float) -> int:
    """Return the tokens that a value of the metric TOKENS stands for; 0 if it is no count."""
    return round(value) if 0.0 < value < _TOKENS_MAX else 0


def storable(number: int) -> int:
    """Return the nearest number that a capture can hold: `apply` takes every event, even an impossible one."""
    return max(-(2**63), min(number, 2**64 - 1))
