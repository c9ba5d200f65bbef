"""A violation: a learning rate, or the groups it applies to, differs from what the controller wrote."""

from __future__ import annotations

from typing import NamedTuple

UNKNOWN_GROUP = ""


class Violation(NamedTuple):
    """`group`: empty if it is not registered. `found`: None if no number. `where`: a line of code, or empty."""

    group: str
    expected: float | None
    found: float | None
    what: str
    where: str = ""

    def __str__(self) -> str:
        """Return one sentence for an exception or a log."""
        name = f"group {self.group}: " if self.group else ""
        rates = "" if self.expected is None else f" (expected {self.expected!r}, found {self.found!r})"
        at = f", at {self.where}" if self.where else ""
        return f"{name}{self.what}{rates}{at}; change learning rates through the controller only"
