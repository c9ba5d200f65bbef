"""The metric that decides about the best epoch and patience, as a configuration names it: `loss`, `f1:max`."""

from __future__ import annotations

import enum
from typing import Final


class Better(enum.Enum):
    """Which way a metric gets better."""

    MIN = "min"
    MAX = "max"


DEFAULT_METRIC: Final = "loss"
# The direction of metrics that mean the same in every task. Any other metric needs one, as in `f1:max`.
KNOWN_MODES: Final = {"loss": Better.MIN, "accuracy": Better.MAX}


def read_metric(text: str) -> tuple[str, Better]:
    """Parse `NAME`, `NAME:min` or `NAME:max`. Raises ValueError if it is unknown which way is better."""
    name, colon, word = text.partition(":")
    if colon and word in {"min", "max"} and name:
        return name, Better(word)
    if colon or not name:
        raise ValueError(f"must be a metric's name, optionally with :min or :max, got {text!r}")
    if name not in KNOWN_MODES:
        raise ValueError(f"is a larger {name} better? say {name}:max or {name}:min")
    return name, KNOWN_MODES[name]
