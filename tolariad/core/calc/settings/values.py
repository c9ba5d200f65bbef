"""The types of values in the configuration: numbers with unit and bounds, references to secrets, names of metrics.

Promises: times, sizes and epochs within these bounds, and what is computed from them, fit into an event.
"""

from __future__ import annotations

import enum
from typing import Annotated, Final

from msgspec import Meta

from tolariad.core.calc.bounds import COUNT_MAX, EPOCH_MAX, NOTE_CHARACTERS_MAX

# How much of a wrong value its refusal repeats.
_SHOWN: Final = 60
# Every number has two bounds. Integers stay in the range that JSON readers of all languages keep exact. Times, sizes
# and rates stay in the range in which their sums, in nanoseconds or bytes, fit into an event.
Positive = Annotated[int, Meta(ge=1, le=COUNT_MAX)]
Epochs = Annotated[int, Meta(ge=1, le=EPOCH_MAX)]
EpochCount = Annotated[int, Meta(ge=0, le=EPOCH_MAX)]
StepCount = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
Threads = Annotated[int, Meta(ge=1, le=4096)]
Processes = Annotated[int, Meta(ge=0, le=4096)]
Ranks = Annotated[int, Meta(ge=1, le=4096)]
Leaves = Annotated[int, Meta(ge=1, le=65_536)]
Number64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
StageText = Annotated[str, Meta(min_length=1, max_length=NOTE_CHARACTERS_MAX, pattern=r"\S")]
MetricName = Annotated[str, Meta(max_length=256)]
Seed64 = Annotated[int, Meta(ge=0, le=2**63 - 1)]
PositiveSeconds = Annotated[float, Meta(gt=0, le=1_000_000_000)]
Seconds = Annotated[float, Meta(ge=0, le=1_000_000_000)]
Milliseconds = Annotated[float, Meta(gt=0, le=1_000_000_000)]
Hours = Annotated[float, Meta(gt=0, le=1_000_000)]
Days = Annotated[float, Meta(ge=0, le=100_000)]
Gigabytes = Annotated[float, Meta(gt=0, le=1_000_000)]
MegabytesPerSecond = Annotated[float, Meta(gt=0, le=1_000_000)]
Percent = Annotated[float, Meta(ge=0, le=1_000_000)]
PositiveRate = Annotated[float, Meta(gt=0, le=1_000_000)]
Rate = Annotated[float, Meta(ge=0, le=1_000_000)]
# Arguments of an optimizer: weight decay, eps and similar.
PositiveCoefficient = Annotated[float, Meta(gt=0, le=1_000_000)]
Coefficient = Annotated[float, Meta(ge=0, le=1_000_000)]
Fraction = Annotated[float, Meta(ge=0, lt=1)]
MaskFloor = Annotated[float, Meta(gt=0, le=1)]
MaskScale = Annotated[float, Meta(ge=1, le=1_000_000)]
# A reference to a secret. The secret itself must not be in the configuration: that is recorded and printed.
Secret = Annotated[
    str,
    Meta(
        pattern=r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+|credential:[A-Za-z0-9_.-]+)$",
        extra={"secret": True},
    ),
]


class Better(enum.Enum):
    """The direction in which a metric gets better."""

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


def read_address(text: str) -> tuple[str, int]:
    """Split `host:port`; an IPv6 address stands in brackets. Raises ValueError with the reason."""
    host, colon, port = text.rpartition(":")
    if not colon or not host.strip("[]"):
        raise ValueError(f"{text[:_SHOWN]!r} is not host:port, such as 127.0.0.1:9108")
    if not port.isascii() or not port.isdecimal() or len(port) > 5 or int(port) > 65_535:
        raise ValueError(f"{port[:_SHOWN]!r} is not a port from 0 to 65535")
    return host.removeprefix("[").removesuffix("]"), int(port)
