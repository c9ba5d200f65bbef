"""Export a journal as JSON lines, one event a line.

There are two forms. The readable form decodes each event. Bytes become hex strings. A number that is not finite becomes
null, with a word in a field beside it (`loss: null, loss_state: "nan"`). A msgpack extension becomes
`{"ext": code, "data": hex}`. Unknown types and fields are exported unchanged. The raw form keeps each event's msgpack
bytes in base64, so it loses nothing. Both forms are ASCII: control sequences in an event cannot reach the terminal.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from journal.records import JournalEntry

_WORD = {math.inf: "pos_inf", -math.inf: "neg_inf"}


def export_json_lines(entries: Iterable[JournalEntry], write: Callable[[str], object]) -> int:
    """Write one readable JSON object a line for each entry. Return the number of entries."""
    return _export(entries, write, readable_line)


def export_raw_lines(entries: Iterable[JournalEntry], write: Callable[[str], object]) -> int:
    """Write one JSON object a line with the event's own bytes in base64. Return the number of entries."""
    return _export(entries, write, raw_line)


def _export(
    entries: Iterable[JournalEntry], write: Callable[[str], object], line: Callable[[JournalEntry], str]
) -> int:
    count = 0
    for count, entry in enumerate(entries, start=1):  # noqa: B007 -- the count is the answer
        write(line(entry) + "\n")
    return count


def readable_line(entry: JournalEntry) -> str:
    """Return one entry as a JSON object, without a line end."""
    labels = {"seq": entry.seq, "wall": rfc3339(entry.wall_ns), "epoch": entry.epoch, "step": entry.step}
    try:
        event = jsonable(msgspec.msgpack.decode(entry.event, ext_hook=_extension, strict=False))
        # `allow_nan=False`: NaN is not JSON, and many parsers refuse a whole file because of it.
        return json.dumps({**labels, "event": event}, allow_nan=False)
    except (msgspec.MsgspecError, ValueError, RecursionError, TypeError):
        # The event has no JSON form, or is not msgpack. Export its bytes, so that no line is missing.
        return json.dumps({**labels, "event": None, "raw": _base64(entry.event)})


def raw_line(entry: JournalEntry) -> str:
    """Return one entry as a JSON object that contains the event's exact bytes."""
    # The bytes themselves: decoding and encoding again could give other bytes for the same value.
    labels = {"seq": entry.seq, "wall_ns": entry.wall_ns, "epoch": entry.epoch, "step": entry.step}
    return json.dumps({**labels, "raw": _base64(entry.event)})


def rfc3339(wall_ns: int) -> str:
    """Return nanoseconds since 1970 as a UTC timestamp with microseconds; as digits if there is no such day."""
    # The label is whatever clock its writer had. An export must not fail because of it.
    try:
        seconds, rest_ns = divmod(wall_ns, 1_000_000_000)
        moment = dt.datetime.fromtimestamp(seconds, tz=dt.UTC).replace(microsecond=rest_ns // 1000)
    except (ValueError, OverflowError, OSError):
        return str(wall_ns)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def jsonable(value: Any) -> Any:
    """Return a decoded msgpack value in a form that JSON can represent. The module docstring gives the rules."""
    if isinstance(value, dict):
        return _map(value)
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    # null and not a string: a reader that expects a number keeps working. The word is in the field beside it
    # (`_map`).
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dt.datetime):
        return value.isoformat()
    return value


def _map(value: dict[Any, Any]) -> dict[str, Any]:
    out = {_key(key): jsonable(item) for key, item in value.items()}
    for key, item in value.items():
        words = _words(item)
        if words is not None:
            # If the event has a field of that name itself, keep the event's field.
            out.setdefault(f"{_key(key)}_state", words)
    return out


def _key(key: Any) -> str:
    # JSON keys are strings, msgpack keys may be anything. A converted key keeps the line readable.
    return key if isinstance(key, str) else bytes(key).hex() if isinstance(key, bytes) else str(key)


def _words(value: Any) -> Any:
    """Return the word for a value that is not finite; for a list, a list of words; None if all numbers are finite."""
    if isinstance(value, float):
        return None if math.isfinite(value) else _WORD.get(value, "nan")
    if isinstance(value, (list, tuple)):
        words = [_words(item) for item in value]
        return [word or "finite" for word in words] if any(words) else None
    return None


def _extension(code: int, data: memoryview) -> dict[str, Any]:
    # JSON has no type for it. Its code and its bytes let a reader who knows it decode it later.
    return {"ext": code, "data": bytes(data).hex()}


def _base64(event: msgspec.Raw) -> str:
    return base64.b64encode(bytes(event)).decode("ascii")
