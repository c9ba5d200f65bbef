"""Print to stdout, as text or JSON. Colours are used only on a terminal that shows them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, TextIO

_COLOURS: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_OWN: Final = frozenset(f"\x1b[{code}m" for code in ("0", *_COLOURS.values()))
OWN_MARKS: Final = re.compile("(\x1b\\[[0-9]{1,2}m)")


def colours_wanted(stream: TextIO) -> bool:
    """Return whether to colour: NO_COLOR and FORCE_COLOR decide, else whether the stream is a terminal, not `dumb`."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def painted(text: str, colour: str, stream: TextIO | None = None) -> str:
    """Return `text` in a colour, or unchanged if the stream wants none."""
    wanted = colours_wanted(stream if stream is not None else sys.stdout)
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if wanted and colour else text


def shown(text: str) -> str:
    """Return `text` without control characters, except line ends and the colours of this module.

    Commands escape text from outside when they format it. This is a second barrier.
    """
    from tolariad.core.plain import safe_lines

    return "".join(part if part in _OWN else safe_lines(part) for part in OWN_MARKS.split(text))


def put(text: str) -> None:
    """Print a line of the answer to stdout."""
    print(shown(text))


def put_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows of cells, with columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        put("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def put_json(value: Mapping[str, Any]) -> None:
    """Print a JSON object on one line and flush it: a program may be waiting for it."""
    import json

    from tolariad.core.plain import escaped_json

    print(escaped_json(json.dumps(value, ensure_ascii=False, allow_nan=False)), flush=True)


def note(text: str) -> None:
    """Print to stderr a line that is not part of the answer."""
    print(shown(text), file=sys.stderr)


def duration(seconds: float | None) -> str:
    """Return seconds as `850 ms`, `12 s`, `3 min 20 s`, `2 h 5 min` or `3 d 4 h`; a dash for None."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    whole = int(seconds)
    for unit, name, smaller, smaller_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit:
            rest = whole % unit // smaller
            return f"{whole // unit} {name} {rest} {smaller_name}" if rest else f"{whole // unit} {name}"
    return f"{whole} s"


def counted(count: int, what: str) -> str:
    """Return a count with its noun: `1 event`, `2 events`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def size(count: int) -> str:
    """Return a number of bytes in decimal units: `1.5 MB`."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def number(value: Any, state: Any = None) -> str:
    """Return a number with four digits. None gives `state` (`nan`, `inf`) if it is not finite, else a dash."""
    if value is None:
        return str(state) if state and state != "finite" else "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
