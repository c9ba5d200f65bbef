"""Messages with one impossible value each, made from the types: a new order, report or key needs no line here."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import TypeVar

import msgspec
from msgspec import inspect

T = TypeVar("T")
NUMBERS = (
    *(0, -1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, 10**30, 10**5000, -(2**63), -(2**63) - 1, True),
    *(math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, -0.0),
)
TEXTS = ("", "x" * 5_000, "x" * 70_000, "\ud800", "a\0b", "\0", "\u202eabc\x9b2J", "1" * 5_000)
VALUES = (*NUMBERS, *TEXTS, None, (), {})


def is_number(kind: inspect.Type) -> bool:
    """Whether a leaf holds a number."""
    return isinstance(kind, inspect.IntType | inspect.FloatType)


def usual(kind: inspect.Type) -> object:
    """A value of the type that nobody would object to, as plain data."""
    match kind:
        case inspect.Metadata():
            return usual(kind.type)
        case inspect.UnionType():
            return usual(next(one for one in kind.types if not isinstance(one, inspect.NoneType)))
        case inspect.StructType():
            return document(kind.cls)
        case inspect.EnumType():
            return next(iter(kind.cls)).value
        case inspect.LiteralType():
            return kind.values[0]
        case inspect.VarTupleType():
            return [usual(kind.item_type)]
        case inspect.TupleType():
            return [usual(one) for one in kind.item_types]
        case inspect.DictType():
            return {"a": usual(kind.value_type)}
        case inspect.IntType():
            return 1
        case inspect.FloatType():
            return 0.5
        case inspect.BoolType():
            return False
        case inspect.StrType():
            return "a"
        case inspect.BytesType():
            return b"a"
        case _:
            raise AssertionError(f"no usual value for {kind}")


def document(kind: type[msgspec.Struct]) -> dict[str, object]:
    """A whole Struct as plain data, by field names."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    tag = {} if info.tag_field is None else {info.tag_field: info.tag}
    return {**tag, **{field.encode_name: usual(field.type) for field in info.fields}}


def extremes(kind: inspect.Type, values: tuple[object, ...] = VALUES) -> Iterator[tuple[str, object]]:
    """Where, and the plain data of the type with one leaf replaced by an extreme; each leaf by each."""
    match kind:
        case inspect.Metadata():
            yield from extremes(kind.type, values)
        case inspect.UnionType():
            for one in kind.types:
                yield from extremes(one, values)
        case inspect.StructType():
            # Beside all other fields, and beside none that may be left out: some are only understood alone.
            whole = document(kind.cls)
            optional = {field.encode_name for field in kind.fields if not field.required}
            least = {name: value for name, value in whole.items() if name not in optional}
            for field in kind.fields:
                for path, value in extremes(field.type, values):
                    for others in (whole, least) if optional else (whole,):
                        yield f".{field.encode_name}{path}", {**others, field.encode_name: value}
        case inspect.VarTupleType():
            yield from (("", value) for value in values)
            for path, value in extremes(kind.item_type, values):
                yield f"[0]{path}", [value]
        case inspect.TupleType():
            for path, value in extremes(kind.item_types[0], values):
                yield f"[0]{path}", [value, *map(usual, kind.item_types[1:])]
        case inspect.DictType():
            yield from (("", value) for value in values)
            for path, value in extremes(kind.value_type, values):
                yield f".a{path}", {"a": value}
            for name in (one for one in values if isinstance(one, str)):
                yield ".NAME", {name: usual(kind.value_type)}
        case _:
            yield from (("", value) for value in values)


def extremes_of(kind: type[msgspec.Struct], values: tuple[object, ...] = VALUES) -> list[tuple[str, dict[str, object]]]:
    """Every field of a Struct, nested ones too, with every extreme."""
    return [(path, value) for path, value in extremes(inspect.type_info(kind), values) if isinstance(value, dict)]


def drawn(found: list[T], most: int | None, seed: int, what: str) -> list[T]:
    """So many of them, or all: the ordinary suite draws some, `make torture` tries all."""
    return random.Random(f"{seed} {what}").sample(found, most) if most and len(found) > most else found


def built(kind: inspect.Type, value: object) -> object:
    """The plain data as objects, checked by nobody: what a program in the same process may hand over."""
    match kind:
        case inspect.Metadata():
            return built(kind.type, value)
        case inspect.UnionType():
            inner = next((one for one in kind.types if isinstance(one, inspect.StructType | inspect.EnumType)), None)
            return value if inner is None else built(inner, value)
        case inspect.StructType() if isinstance(value, dict):
            fields = {field.encode_name: field for field in kind.fields}
            inner = {fields[name].name: built(fields[name].type, one) for name, one in value.items() if name in fields}
            return kind.cls(**inner) if inner.keys() >= {f.name for f in kind.fields if f.required} else value
        case inspect.EnumType():
            return next((one for one in kind.cls if one.value == value and type(one.value) is type(value)), value)
        case inspect.VarTupleType() if isinstance(value, list):
            return tuple(built(kind.item_type, one) for one in value)
        case _:
            return value


def members(union: object) -> list[type[msgspec.Struct]]:
    """The Structs of a union such as Report."""
    return list(getattr(union, "__args__"))  # noqa: B009 - a union's own attribute, which its type does not show
