"""The metric that the best epoch and patience go by, as a configuration names it: `loss`, `accuracy`, `f1:max`."""

from __future__ import annotations

import enum
from typing import Final


class Better(enum.Enum):
    """Which way a metric gets better."""

    MIN = "min"
    MAX = "max"


DEFAULT_METRIC: Final = "loss"
# Which way is better, for the names that every task gives the same meaning; any other says it, as in `f1:max`.
KNOWN_MODES: Final = {"loss": Better.MIN, "accuracy": Better.MAX}


def read_metric(text: str) -> tuple[str, Better]:
    """`NAME`, `NAME:min` or `NAME:max`. Raises ValueError where it cannot be known which way is better."""
    name, colon, word = text.partition(":")
    if colon and word in {"min", "max"} and name:
        return name, Better(word)
    if colon or not name:
        raise ValueError(f"must be a metric's name, with :min or :max behind it, got {text!r}")
    if name not in KNOWN_MODES:
        raise ValueError(f"is a larger {name} better? say {name}:max or {name}:min")
    return name, KNOWN_MODES[name]
