"""The step table: the values of each step for plots, searches and the fold, as columns of numbers.

Promises: the columns are derived from `StepCompleted` alone, and hold all that the fold reads of a step. Columns are
only ever added, at the end. The journal gets `STEP_COLUMNS`, `step_row` and `METRIC` as arguments. A step's metrics
follow its other values, in the columns `metric1` and so on: their names are in MetricsNamed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from tolariad.core.calc.bounds import METRICS_MAX
from tolariad.core.calc.steps.many import ManySteps

# Name and type: q is a signed 64-bit integer, d a 64-bit float.
STEP_COLUMNS: Final = (
    ("step", "q"),
    ("branch", "q"),
    ("wall", "q"),
    ("loss", "d"),
    ("grad_norm", "d"),
    ("lr", "d"),
    ("epoch", "q"),
    ("mono", "q"),
    ("batch", "q"),
    ("rates", "Q"),
    ("data", "q"),
    ("metrics", "q"),
)
STEP_NAMES: Final = tuple(name for name, _ in STEP_COLUMNS)
# Those that plots need. The others are in the tables of later versions only.
PLOTTED: Final = STEP_COLUMNS[:7]
METRIC: Final = "metric"
# An event is one map whose first key is its type. It follows the map's head: one byte in journals of versions whose
# steps could have 15 fields, three in later ones.
_HEAD: Final = b"\xa4type\xadStepCompleted"
_AFTER: Final = (3, 1)


class _Step(msgspec.Struct, frozen=True, gc=False):
    step: int
    loss: float
    grad_norm: float
    lr: float
    wall: int = 0
    branch: int = 0
    epoch: int = 0
    mono: int = 0
    batch: int = 0
    rates: int = 0
    data: int = 0
    metrics: tuple[float, ...] = ()


_decode: Final = msgspec.msgpack.Decoder(_Step).decode


def is_step(event: bytes) -> bool:
    """Return whether one journaled event is a completed step, by its first bytes."""
    long, short = _AFTER
    return event.startswith(_HEAD, long) or event.startswith(_HEAD, short)


def step_row(event: bytes) -> tuple[float, ...] | None:
    """Return the row of one journaled event: STEP_COLUMNS, then its metrics. None unless it is a completed step."""
    if not is_step(event):
        return None
    step = _decode(event)
    metrics = step.metrics
    values = step.step, step.branch, step.wall, step.loss, step.grad_norm, step.lr, step.epoch
    further = step.mono, step.batch, step.rates, step.data, len(metrics)
    # A run has no more names, whatever an event holds.
    return *values, *further, *metrics[:METRICS_MAX]


def plotted_row(event: bytes) -> tuple[float, ...] | None:
    """Return the row of one journaled event: PLOTTED, then its metrics. None unless it is a completed step."""
    row = step_row(event)
    return row and (*row[: len(PLOTTED)], *row[len(STEP_COLUMNS) :])


def steps_in(columns: Mapping[str, Sequence[Any]]) -> ManySteps | None:
    """Return the steps of a table as the fold reads them; None if they are not all in it."""
    if any(name not in columns for name in STEP_NAMES):
        return None
    counts = columns["metrics"]
    most = max(counts, default=0)
    named = [f"{METRIC}{number}" for number in range(1, most + 1)]
    if most > METRICS_MAX or any(name not in columns for name in named):
        return None
    metrics = [*zip(*(columns[name] for name in named), strict=True)] if named else [()] * len(counts)
    if named and min(counts) < most:
        metrics = [row[:count] for row, count in zip(metrics, counts, strict=True)]
    others = {name: columns[name] for name in ManySteps._fields if name != "metrics"}
    return ManySteps(**others, metrics=metrics)
