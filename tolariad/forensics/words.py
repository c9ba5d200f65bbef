"""An event as a sentence, as one line of its fields, and as a block of them.

Promises: the text contains no control character that a terminal would act on. An event that this version cannot read,
such as one of a newer version, is shown by its fields.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tolariad.core.calc.text.plain import safe, safe_lines

if TYPE_CHECKING:
    from tolariad.core import messages as m

__all__ = ["block", "by_whom", "in_words", "named", "one_line", "safe", "safe_lines"]

_STAMP: Final = frozenset({"type", "time", "seq", "wall", "mono", "cause", "root", "actor", "skippable"})
_VALUE_CHARACTERS_MAX: Final = 100


def in_words(fields: Mapping[str, Any]) -> str:
    """Return the event's sentence; its fields on one line if this version cannot read it."""
    from tolariad.core.messages.sentences.text import sentence

    kind = _kinds().get(str(fields.get("type", "")))
    try:
        return safe(sentence(msgspec.convert(fields, kind))) if kind is not None else one_line(fields)
    except msgspec.ValidationError:
        return one_line(fields)


@functools.cache
def _kinds() -> dict[str, type[m.Event]]:
    """Return the types that have a sentence. Most commands need none of them, and none needs the vocabulary's codec."""
    from tolariad.core.messages.sentences.text import SENTENCES

    return {kind.__name__: kind for kind in SENTENCES}


def named(fields: Mapping[str, Any]) -> str:
    """Return the event's type, with that of the boundary order inside it: `OrderActed:SetRate`."""
    order = fields.get("order")
    of = f":{order['type']}" if isinstance(order, Mapping) and "type" in order else ""
    return f"{fields.get('type', '?')}{of}"


def one_line(fields: Mapping[str, Any]) -> str:
    """Return the event's own fields as `name=value`, then the actor and the reason."""
    parts = [f"{safe(name)}={_short(value)}" for name, value in fields.items() if name not in _STAMP]
    actor = fields.get("actor")
    if isinstance(actor, Mapping):
        parts.append(by_whom(actor))
    return " ".join(parts)


def by_whom(actor: Mapping[str, Any]) -> str:
    """Return the actor as `(by tolaria, uid 1000: reason)`."""
    uid = actor.get("uid")
    of_user = f"uid {uid}" if isinstance(uid, int) and uid >= 0 else ""
    who = ", ".join(part for part in (str(actor.get("program", "")), of_user) if part)
    reason = actor.get("reason", "")
    return safe(f"(by {who or 'tolariad'}{': ' if reason else ''}{reason})")


def _short(value: Any) -> str:
    # int and float first: nearly all values of a journal are of these types.
    if type(value) is int:
        return str(value)
    if type(value) is float:
        return f"{value:.6g}"
    match value:
        case bool() | None:
            return {True: "yes", False: "no", None: "-"}[value]
        case bytes():
            text = value.hex()
        case Mapping():
            text = "{" + " ".join(f"{safe(str(key))}={_short(inner)}" for key, inner in value.items()) + "}"
        case list() | tuple():
            text = f"[{len(value)}]" if len(value) > 4 else "[" + " ".join(_short(one) for one in value) + "]"
        case str():
            text = safe(value)
            text = f'"{text}"' if " " in text or not text else text
        case _:
            return safe(str(value))
    return text if len(text) <= _VALUE_CHARACTERS_MAX else text[: _VALUE_CHARACTERS_MAX - 1] + "…"


def is_cut(text: str) -> bool:
    """Return whether `one_line` shows only a part of this text, or its line ends as marks."""
    return "\n" in text or len(text) > _VALUE_CHARACTERS_MAX - 2


def _whole(value: Any) -> str:
    """Return an item of a list: its fields on one line, nothing shortened."""
    if not isinstance(value, Mapping):
        return safe(str(value))
    return " ".join(f"{safe(str(name))}={safe(str(inner))}" for name, inner in value.items())


def _for_people(value: Any) -> Any:
    """Return the value with a summary in place of text that only a program reads."""
    if isinstance(value, list | tuple):
        return [_for_people(one) for one in value]
    if isinstance(value, str) and value.startswith('{"') and is_cut(value):
        return f"a JSON object of {len(value)} characters"
    if not isinstance(value, Mapping):
        return value
    is_table = value.keys() >= {"source", "hash", "steps", "packed"}
    shown = {**value, "packed": f"{len(str(value['packed']))} characters"} if is_table else value
    return {name: _for_people(inner) for name, inner in shown.items()}


def block(fields: Mapping[str, Any], *, indent: str = "    ") -> str:
    """Return every field on a line of its own. Text of several lines is indented below its name.

    Nothing is shortened but the table of a function and an object as JSON, whose thousands of characters only a
    program reads.
    """
    return _block(_for_people(fields), indent)


def _block(fields: Mapping[str, Any], indent: str) -> str:
    lines: list[str] = []
    for name, value in fields.items():
        if isinstance(value, str) and "\n" in value.strip():
            lines.append(f"{indent}{safe(name)}:")
            lines += [f"{indent}    {line}" for line in safe_lines(value.rstrip()).split("\n")]
        elif isinstance(value, Mapping) and value:
            inner = {str(key): one for key, one in value.items()}
            lines += [f"{indent}{safe(name)}:", _block(inner, indent + "    ")]
        elif isinstance(value, list | tuple) and any(isinstance(one, Mapping) for one in value):
            lines += [f"{indent}{safe(name)}:", *(f"{indent}    {_whole(one)}" for one in value)]
        else:
            lines.append(f"{indent}{safe(name)}: {safe(str(value))}")
    return "\n".join(lines)
