"""Generate docs/events.md from the event types, and the record of names and types that a test compares.

Promises: the same types give the same text.
"""

from __future__ import annotations

import re
from inspect import cleandoc
from typing import Any, Final

import msgspec
from msgspec import inspect

from tests.house.wrapping import wrapped
from tolariad.core import messages as m
from tolariad.core.messages.vocabulary import CONCERNS, EVENT_TYPES, defined_in
from tolariad.core.rules.table.reactions import TABLE
from tolariad.core.state.run_state import FOLDS

_STAMP: Final = tuple(field.name for field in msgspec.structs.fields(m.Event))
_HEAD: Final = """\
# Events

Every event that a journal can hold. This page is generated (`make docs`). An event is one msgpack map: `type`, then the
stamp, then the fields below. A field that has its default is left out. Names and fields are only ever added; a reader
of another version skips those that it does not know.

The stamp:

* `wall`: nanoseconds since 1970, as read;
* `mono`: nanoseconds, CLOCK_MONOTONIC of the daemon's boot;
* `cause`: sequence number of the event that led to this one; absent if it came from outside;
* `root`: the first of that chain;
* `actor`: the one who ordered it, by uid, pid, program and reason;
* `skippable`: it never changes the state.

"Folded into" names the slices of the state that the event changes. They are the fields of `RunState` in
`tolariad/core/state/run_state.py`; each has its apply table in its file beside that one. An event may also change the
phase (`TRANSITIONS` in `tolariad/core/state/run.py`).
"""


def type_name(kind: inspect.Type) -> str:
    """Return a field's type in the words of msgpack."""
    match kind:
        case inspect.Metadata():
            return type_name(kind.type)
        case inspect.UnionType():
            return " or ".join(type_name(one) for one in kind.types)
        case inspect.StructType() | inspect.EnumType():
            return kind.cls.__name__
        case inspect.VarTupleType():
            return f"array of {type_name(kind.item_type)}"
        case inspect.DictType():
            return f"map of {type_name(kind.key_type)} to {type_name(kind.value_type)}"
        case inspect.NoneType():
            return "nil"
        case _:
            return type(kind).__name__.removesuffix("Type").lower()


def _unit(kind: inspect.Type) -> str:
    match kind:
        case inspect.Metadata():
            schema: dict[str, Any] = kind.extra_json_schema or {}
            return str(schema.get("description", "")) or _unit(kind.type)
        case inspect.UnionType():
            return next(filter(None, map(_unit, kind.types)), "")
        case inspect.EnumType():
            return ", ".join(f"{one.value} {one.name}" if isinstance(one, int) else str(one.value) for one in kind.cls)
        case _:
            return ""


def fields_of(kind: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    """Return a Struct's own fields, without the stamp."""
    info = inspect.type_info(kind)
    fields = info.fields if isinstance(info, inspect.StructType) else ()
    return tuple(field for field in fields if not (issubclass(kind, m.Event) and field.name in _STAMP))


def _nested(kind: inspect.Type) -> list[type[msgspec.Struct]]:
    match kind:
        case inspect.Metadata():
            return _nested(kind.type)
        case inspect.UnionType():
            return [found for one in kind.types for found in _nested(one)]
        case inspect.VarTupleType():
            return _nested(kind.item_type)
        case inspect.DictType():
            return _nested(kind.value_type)
        case inspect.StructType():
            return [kind.cls, *(found for field in kind.fields for found in _nested(field.type))]
        case _:
            return []


def record() -> dict[str, dict[str, str]]:
    """Return the field names and types of all events and values. Later versions only add to them."""
    kinds: dict[str, type[msgspec.Struct]] = dict(EVENT_TYPES)
    for event in EVENT_TYPES.values():
        for field in fields_of(event):
            kinds.update({one.__name__: one for one in _nested(field.type)})
    return {
        name: {field.encode_name: type_name(field.type) for field in fields_of(kind)}
        for name, kind in sorted(kinds.items())
    }


def _table(kind: type[msgspec.Struct]) -> str:
    fields = fields_of(kind)
    if not fields:
        return "No fields of its own.\n"
    rows = ["| field | type | unit or values | default |", "|---|---|---|---|"]
    for field in fields:
        default = "" if field.required else f"`{_default(field)}`"
        rows.append(f"| `{field.encode_name}` | {type_name(field.type)} | {_unit(field.type)} | {default} |")
    return "\n".join(rows) + "\n"


def _default(field: inspect.Field) -> str:
    value = field.default_factory() if callable(field.default_factory) else field.default
    value = getattr(value, "value", value)
    return "nil" if value is None else repr(value)


def events_page() -> str:
    """Return the whole page as Markdown."""
    parts = [_HEAD]
    values: dict[str, type[msgspec.Struct]] = {}
    for title, module in CONCERNS.items():
        parts.append(f"## {title}\n")
        for event in defined_in(module, m.Event):
            parts.append(f"### {event.__name__}\n")
            parts.append(f"{_prose(event)}\n")
            parts += [f"{line}\n" for line in _relations(event)]
            parts.append(_table(event))
            for field in fields_of(event):
                values.update({one.__name__: one for one in _nested(field.type)})
    parts.append("## Values inside events\n")
    for name, kind in sorted(values.items()):
        parts += [f"### {name}\n", f"{_prose(kind)}\n", _table(kind)]
    return wrapped("\n".join(parts))


def _relations(event: type[m.Event]) -> list[str]:
    """Return the order that the event accepts, the rows of docs/reactions.md that record it, and who folds it."""
    orders = " or ".join(f"`{one}`" for one in event.accepts())
    rows = ", ".join(f"`{row.kind.__name__}`" for row in TABLE if event in row.makes)
    slices = ", ".join(f"`{name}`" for name, _ in FOLDS.get(event, ()))
    lines = {"It accepts the order": orders, "Recorded after:": rows, "Folded into:": slices}
    return [f"{says} {what}." for says, what in lines.items() if what]


def _prose(kind: type) -> str:
    """Return the docstring: a line for each paragraph, and for each item of a list."""
    paragraphs = cleandoc(kind.__doc__ or "").split("\n\n")
    return "\n\n".join(re.sub(r"\n(?!\* )\s*", " ", paragraph) for paragraph in paragraphs)
