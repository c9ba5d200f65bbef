"""Events and numbers as plain JSON values, the same in `--json`, over the control socket and in exports.

Promises: every value JSON can carry and nothing it cannot: a number that is not finite is null with a word beside it
(`loss`, `loss_state`), bytes are hex, NUL is stripped from text (some readers end a string there), times are RFC 3339 with
microseconds. The journal keeps the true values. It must not know: any event in particular.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

STATE_SUFFIX: Final = "_state"


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
