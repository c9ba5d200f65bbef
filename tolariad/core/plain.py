"""Events and numbers as plain JSON values, the same in `--json`, over the control socket and in exports.

Promises: every value JSON can carry and nothing it cannot: a number that is not finite is null with a word beside it
(`loss`, `loss_state`), bytes are hex, NUL is stripped from text (some readers end a string there), times are RFC 3339 with
microseconds. The journal keeps the true values. It must not know: any event in particular.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

STATE_SUFFIX: Final = "_state"
# What a terminal obeys instead of showing it: control characters of both halves, separators of lines and paragraphs, marks
# that turn the direction of text round; and halves of surrogate pairs, which no encoding can write.
_HIGH: Final = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_OBEYED: Final = re.compile(f"[\x00-\x1f{_HIGH}]")
_NAMED: Final = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
_LINES: Final = re.compile(r"([\n\t])")
_OBEYED_IN_JSON: Final = re.compile(f"[{_HIGH}]")
# The same in UTF-8, which has no halves of surrogate pairs.
_OBEYED_IN_BYTES: Final = re.compile(rb"\x7f|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]")


def safe(text: str) -> str:
    """Return `text` with every character written out that a terminal would obey, so that it can only be read."""
    return text if text.isprintable() else _OBEYED.sub(_written, text)


def safe_lines(text: str) -> str:
    """As `safe`, but line ends and tabs stay: for tracebacks and logs."""
    return "".join(part if part in ("\n", "\t") else safe(part) for part in _LINES.split(text))


def _written(found: re.Match[str]) -> str:
    character, code = found[0], ord(found[0])
    return _NAMED.get(character) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


def escaped_json(text: str) -> str:
    """Return the same JSON with every character written out that a terminal would obey; encoders leave many as they are."""
    return _OBEYED_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def escaped_json_bytes(body: bytes) -> bytes:
    """Return `escaped_json` of JSON in UTF-8."""
    return _OBEYED_IN_BYTES.sub(lambda found: f"\\u{ord(found[0].decode()):04x}".encode(), body)


def number_state(value: float | None) -> str | None:
    """The word beside a number: finite, nan, pos_inf, neg_inf; None where there is no number."""
    if value is None:
        return None
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "pos_inf" if value > 0 else "neg_inf"
    return "finite"


def finite(value: float | None) -> float | None:
    """The number itself where JSON can carry it."""
    return value if value is not None and math.isfinite(value) else None


def rfc3339(wall_ns: int) -> str:
    """UTC with microseconds, from nanoseconds since 1970; a wall clock beyond any calendar is shown as its number."""
    seconds, rest = divmod(wall_ns, 1_000_000_000)
    try:
        whole = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return f"@{wall_ns / 1e9:.6f}"
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{rest // 1000:06d}Z"


def plain(value: Any) -> Any:
    """One msgpack value as JSON can carry it. A map's non-finite members get their word in the same map."""
    match value:
        case str():
            return value.replace("\0", "") if "\0" in value else value
        case bool() | int() | None:
            return value
        case float():
            return finite(value)
        case bytes():
            return value.hex()
        case Mapping():
            return _plain_map(value)
        case list() | tuple():
            return [plain(one) for one in value]
        case _:
            # msgpack's extension types: what a newer version may write. Shown, not interpreted.
            return str(value)


def _plain_map(given: Mapping[Any, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for key, value in given.items():
        name = str(key).replace("\0", "")
        shown[name] = plain(value)
        if isinstance(value, float) and not math.isfinite(value):
            shown[name + STATE_SUFFIX] = number_state(value)
    return shown


def plain_event(seq: int, fields: Mapping[str, Any]) -> dict[str, Any]:
    """One journaled event: its number and time first, `wall` as `time`, the rest under its own names."""
    shown: dict[str, Any] = {"seq": seq, "time": rfc3339(fields.get("wall", 0)), "type": fields.get("type", "")}
    shown.update(_plain_map({key: value for key, value in fields.items() if key not in ("type", "wall")}))
    return shown
