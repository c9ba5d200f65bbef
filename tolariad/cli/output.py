"""Answers on stdout: JSON or words, colours only where a terminal wants them.

It must not know: any command.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Any, Final, TextIO

_COLOURS: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_OWN: Final = frozenset(f"\x1b[{code}m" for code in ("0", *_COLOURS.values()))
OWN_MARKS: Final = re.compile("(\x1b\\[[0-9]{1,2}m)")


def colours_wanted(stream: TextIO) -> bool:
    """NO_COLOR and FORCE_COLOR by their conventions, else a terminal that is not dumb."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def painted(text: str, colour: str, stream: TextIO | None = None) -> str:
    """`text` in a colour, where the stream wants any."""
    wanted = colours_wanted(stream if stream is not None else sys.stdout)
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if wanted and colour else text


def shown(text: str) -> str:
    """Return `text` as a terminal may get it: its lines, our own colours, and nothing else that a terminal obeys.

    Commands write out what comes from outside where they put it into words; this is the second line behind that.
    """
    from tolariad.core.plain import safe_lines

    return "".join(part if part in _OWN else safe_lines(part) for part in OWN_MARKS.split(text))


def put(text: str) -> None:
    """One line of the answer."""
    print(shown(text))


def put_json(value: Mapping[str, Any]) -> None:
    """One JSON object on a line of its own, shown at once (a follower may be reading)."""
    import json

    from tolariad.core.plain import escaped_json

    print(escaped_json(json.dumps(value, ensure_ascii=False, allow_nan=False)), flush=True)


def note(text: str) -> None:
    """Everything that is not the answer."""
    print(shown(text), file=sys.stderr)


def duration(seconds: float | None) -> str:
    """`850 ms`, `12 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
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
    """`1 event`, `2 events`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def size(count: int) -> str:
    """Bytes in decimal units: `1.5 MB`."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def number(value: Any, state: Any = None) -> str:
    """A number as people read it; the word beside it where it is not finite; a dash where there is none."""
    if value is None:
        return str(state) if state and state != "finite" else "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
