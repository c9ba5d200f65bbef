"""The parts that sentences about events share: reasons, lists, sizes.

Promises: pure. A reason is one line, whatever the event holds.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import Final

_NAMED_MAX: Final = 3
# The commands of a sentence stand between grave accents.
COMMAND: Final = re.compile(r"`(?:tolaria|tolariad) [^`]*`")
_RUN: Final = re.compile(r"\bRUN\b")


def because(why: str) -> str:
    """Return the reason, and the end of the sentence."""
    words = " ".join(why.split()).rstrip(".")
    return f": {words}." if words else "."


def with_run(text: str, run: str) -> str:
    """Return the text with this run's name or folder in place of RUN in its commands, so that they can be pasted."""
    # A function: in a string a backslash of the name would be an escape.
    return COMMAND.sub(lambda command: _RUN.sub(lambda _: shlex.quote(run), command[0]), text)


def listed(names: Iterable[object]) -> str:
    """Return the first few, and how many more there are."""
    shown = [str(name) for name in names]
    more = f" and {len(shown) - _NAMED_MAX} more" if len(shown) > _NAMED_MAX else ""
    return f"{', '.join(shown[:_NAMED_MAX])}{more}"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def size(count: int) -> str:
    """Return a number of bytes in decimal units: `1.5 MB`."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def last_name(name: str) -> str:
    """Return what is called so in a file: `Name` of `/a/file.py:Name`. Any other name is returned whole."""
    place, _, last = name.rpartition(":")
    return last if place.endswith(".py") else name


def last_line(text: str) -> str:
    """Return the last line that is not empty, or the empty string."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
