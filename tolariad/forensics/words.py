"""An event as one line of words, and as a block of all its fields.

Promises: plain text without control characters that a terminal would obey; the same words for a type that this version
does not know. It must not know: colours, widths.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_STAMP: Final = frozenset({"type", "time", "seq", "wall", "mono", "cause", "root", "actor", "skippable"})
_VALUE_CHARACTERS_MAX: Final = 100
# What a terminal may obey, line and paragraph separators, and marks that turn the direction of text round.
_OBEYED: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})
_TURNING: Final = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_NAMED: Final = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def safe(text: str) -> str:
    """`text` with every control character written out, so that it can only be read."""
    return text if text.isprintable() else "".join(_written(character) for character in text)


def safe_lines(text: str) -> str:
    """As `safe`, but line ends and tabs stay: for tracebacks and logs."""
    return "".join(character if character in "\n\t" else safe(character) for character in text)


def _written(character: str) -> str:
    if character.isprintable():
        return character
    # Only here: most text never needs it, and a command that starts quickly does not load it.
    from unicodedata import category

    if category(character) not in _OBEYED and character not in _TURNING:
        return character
    code = ord(character)
    return _NAMED.get(character) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


def one_line(fields: Mapping[str, Any]) -> str:
    """The fields that are an event's own, as `name=value`; who ordered it, and why, at the end."""
    parts = [f"{safe(name)}={_short(value)}" for name, value in fields.items() if name not in _STAMP]
    actor = fields.get("actor")
    if isinstance(actor, Mapping):
        parts.append(by_whom(actor))
    return " ".join(parts)


def by_whom(actor: Mapping[str, Any]) -> str:
    """`(by tolaria, uid 1000: reason)`."""
    uid = actor.get("uid", -1)
    who = ", ".join(part for part in (str(actor.get("program", "")), f"uid {uid}" if uid >= 0 else "") if part)
    reason = actor.get("reason", "")
    return safe(f"(by {who or 'tolariad'}{': ' if reason else ''}{reason})")


def _short(value: Any) -> str:
    # The two kinds of which there are millions first.
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
            text = "{" + " ".join(f"{key}={_short(inner)}" for key, inner in value.items()) + "}"
        case list() | tuple():
            text = f"[{len(value)}]" if len(value) > 4 else "[" + " ".join(_short(one) for one in value) + "]"
        case str():
            text = safe(value)
            text = f'"{text}"' if " " in text or not text else text
        case _:
            return safe(str(value))
    return text if len(text) <= _VALUE_CHARACTERS_MAX else text[: _VALUE_CHARACTERS_MAX - 1] + "…"


def _whole(value: Any) -> str:
    """One of many of a kind: its fields on one line, nothing cut."""
    if not isinstance(value, Mapping):
        return safe(str(value))
    return " ".join(f"{safe(str(name))}={safe(str(inner))}" for name, inner in value.items())


def block(fields: Mapping[str, Any], *, indent: str = "    ") -> str:
    """Every field on a line of its own, nothing cut; texts of several lines below their name."""
    lines: list[str] = []
    for name, value in fields.items():
        if isinstance(value, str) and "\n" in value.strip():
            lines.append(f"{indent}{safe(name)}:")
            lines += [f"{indent}    {line}" for line in safe_lines(value.rstrip()).split("\n")]
        elif isinstance(value, Mapping) and value:
            lines += [f"{indent}{safe(name)}:", block(value, indent=indent + "    ")]
        elif isinstance(value, list | tuple) and any(isinstance(one, Mapping) for one in value):
            lines += [f"{indent}{safe(name)}:", *(f"{indent}    {_whole(one)}" for one in value)]
        elif isinstance(value, str):
            lines.append(f"{indent}{safe(name)}: {safe(value)}")
        else:
            lines.append(f"{indent}{safe(name)}: {safe(str(value))}")
    return "\n".join(lines)
