"""A learning rate, or what it acts on, found otherwise than the controller left it.

It must not know: how it is put right, or who is told.
"""

from __future__ import annotations

from typing import NamedTuple

UNKNOWN_GROUP = ""


class Violation(NamedTuple):
    """`group` is empty where it is none of ours; `found` is None where there is no number; `where` is a line of code."""

    group: str
    expected: float | None
    found: float | None
    what: str
    where: str = ""

    def __str__(self) -> str:
        """One sentence for an exception or a log."""
        name = f"group {self.group}: " if self.group else ""
        rates = "" if self.expected is None else f" (the rate is {self.expected!r}, found was {self.found!r})"
        at = f", at {self.where}" if self.where else ""
        return f"{name}{self.what}{rates}{at}; learning rates are changed through the controller only"
