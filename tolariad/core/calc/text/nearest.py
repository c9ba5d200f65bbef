"""The name that was probably meant, for the errors about an unknown one.

Promises: pure. Every message asks the same question in the same words.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

# How alike two names must be, from 0 to 1. A key has many neighbours; one of few choices may be more different.
ALIKE: Final = 0.5
KEYS_ALIKE: Final = 0.6


def nearest(name: str, known: Iterable[str], alike: float = ALIKE) -> str | None:
    """Return the known name that is spelt most like `name`; None if none is at least `alike`."""
    return next(iter(all_near(name, known, 1, alike)), None)


def all_near(name: str, known: Iterable[str], most: int, alike: float = ALIKE) -> list[str]:
    """Return at most `most` known names that are spelt like `name`, the nearest first."""
    import difflib  # only for an error

    return difflib.get_close_matches(name, list(known), most, alike)


def did_you_mean(name: str | None) -> str:
    """Return `; did you mean NAME?`, to be appended to an error; nothing without a name."""
    return f"; did you mean {name}?" if name else ""
