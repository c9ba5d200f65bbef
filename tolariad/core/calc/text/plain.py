"""Events and numbers as plain JSON values, the same in `--json`, over the control socket and in exports.

Promises: every value that JSON can carry, and no other. A number that is not finite becomes null with a word beside it
(`loss`, `loss_state`). Bytes are hex. NUL is removed from text, because some readers end a string there. Times are RFC
3339 with microseconds. The journal keeps the true values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

STATE_SUFFIX: Final = "_state"
# Characters that control a terminal instead of being shown: both ranges of control characters, line and paragraph
# separators, marks of text direction. Halves of surrogate pairs, which cannot be encoded, belong to them.
_HIGH: Final = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_OBEYED: Final = re.compile(f"[\x00-\x1f{_HIGH}]")
_NAMED: Final = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
_LINES: Final = re.compile(r"([\n\t])")
_OBEYED_IN_JSON: Final = re.compile(f"[{_HIGH}]")
# The same in UTF-8, which has no halves of surrogate pairs.
_OBEYED_IN_BYTES: Final = re.compile(rb"\x7f|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]")


def safe(text: str) -> str:
    """Return `text` with every terminal control character escaped, so that a terminal only shows it."""
    return text if text.isprintable() else _OBEYED.sub(_written, text)


def safe_lines(text: str) -> str:
    """Return the same as `safe`, but keep line ends and tabs: for tracebacks and logs."""
    return "".join(part if part in ("\n", "\t") else safe(part) for part in _LINES.split(text))


def _written(found: re.Match[str]) -> str:
    character, code = found[0], ord(found[0])
    return _NAMED.get(character) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


def escaped_json(text: str) -> str:
    """Return the same JSON with every terminal control character escaped; encoders leave many of them as they are."""
    return _OBEYED_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def escaped_json_bytes(body: bytes) -> bytes:
    """Return the result of `escaped_json` for JSON in UTF-8."""
    return _OBEYED_IN_BYTES.sub(lambda found: f"\\u{ord(found[0].decode()):04x}".encode(), body)


def number_state(value: float | None) -> str | None:
    """Return the word for a number: finite, nan, pos_inf, neg_inf; None if there is no number."""
    if value is None:
        return None
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "pos_inf" if value > 0 else "neg_inf"
    return "finite"


def finite(value: float | None) -> float | None:
    """Return the number if JSON can carry it, else None."""
    return value if value is not None and math.isfinite(value) else None


def rfc3339(wall_ns: int) -> str:
    """Return UTC with microseconds from nanoseconds since 1970; the bare number if no calendar has that time."""
    seconds, rest = divmod(wall_ns, 1_000_000_000)
    try:
        whole = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return f"@{wall_ns / 1e9:.6f}"
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{rest // 1000:06d}Z"


def plain(value: Any) -> Any:
    """Return one msgpack value as JSON can carry it. A map's non-finite members get their word in the same map."""
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
            # msgpack's extension types: a newer version may write them. Show them without interpretation.
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
    """Return one journaled event: its number and time first, `wall` as `time`, then its fields under their names."""
    wall = fields.get("wall")
    wall_ns = wall if isinstance(wall, int) else 0
    shown: dict[str, Any] = {"seq": seq, "time": rfc3339(wall_ns), "type": plain(fields.get("type", ""))}
    shown.update(_plain_map({key: value for key, value in fields.items() if key not in ("type", "wall")}))
    return shown
