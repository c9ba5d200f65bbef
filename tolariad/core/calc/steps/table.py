"""The step table: the values of each step for plots and searches, as columns of numbers.

Promises: the columns are derived from `StepCompleted` alone. Columns are only ever added, at the end. The journal gets
`STEP_COLUMNS`, `step_row` and `METRIC` as arguments. A step's metrics follow its other values, in the columns `metric1`
and so on: their names are in MetricsNamed.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tolariad.core.calc.bounds import METRICS_MAX

# Name and type: q is a signed 64-bit integer, d a 64-bit float.
STEP_COLUMNS: Final = (
    ("step", "q"),
    ("branch", "q"),
    ("wall", "q"),
    ("loss", "d"),
    ("grad_norm", "d"),
    ("lr", "d"),
    ("epoch", "q"),
)
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
    # A run has no more names, whatever an event holds.
    metrics = step.metrics[:METRICS_MAX]
    return step.step, step.branch, step.wall, step.loss, step.grad_norm, step.lr, step.epoch, *metrics
