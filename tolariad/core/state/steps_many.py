"""Many completed steps at once: their fold into the slice `progress`.

Invariants: the result has the bits of the fold of one step after the other, in `steps`. A test folds both ways: every
kept journal, and steps of any values.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core.calc.bounds import storable, token_count
from tolariad.core.calc.steps.many import PACKED_BYTES, ManySteps, one_nan
from tolariad.core.state.steps import SPEED_WINDOW_STEPS, Measured, Progress, Speed, not_measured


def progressed(s: Progress, made: ManySteps) -> Progress:
    """Return the slice after these steps; at least one."""
    measured = (norm for norm in reversed(made.grad_norm) if norm != m.NOT_MEASURED)
    losses = s.epoch_loss_sum
    # One after the other: `sum` adds floats in another way from Python 3.12 on.
    for loss in made.loss:
        losses += loss
    return replace(
        s,
        step=made.step[-1],
        epoch=made.epoch[-1],
        batch=made.batch[-1],
        branch=made.branch[-1],
        loss=made.loss[-1],
        grad_norm=next(measured, s.grad_norm),
        lr=made.lr[-1],
        last_mono=made.mono[-1],
        last_wall=made.wall[-1],
        epoch_loss_sum=one_nan(losses),
        speed=_speed(s.speed, made),
        digest=s.digest.after_each(b"step", made.packed(), PACKED_BYTES),
        measured=_measured(s.measured, made.metrics),
        tokens=_tokens(s, made.metrics),
    )


def _speed(speed: Speed, made: ManySteps) -> Speed:
    middle = speed.mid_step
    for at, step in enumerate(made.step):
        if step - middle >= SPEED_WINDOW_STEPS:
            speed, middle = Speed(speed.mid_step, speed.mid_mono, step, made.mono[at]), step
    return speed


def _tokens(s: Progress, rows: Sequence[tuple[float, ...]]) -> int:
    at = s.tokens_at
    if at < 0:
        return s.tokens
    return storable(s.tokens + sum(token_count(row[at]) for row in rows if at < len(row)))


def _measured(measured: Measured | None, rows: Sequence[tuple[float, ...]]) -> Measured | None:
    widths = {*map(len, rows)}
    if widths == {0}:
        return not_measured(measured)
    if len(widths) > 1:
        for row in rows:
            measured = (measured or Measured()).with_step(row) if row else not_measured(measured)
        return measured
    (width,) = widths
    before = measured or Measured()
    sums, counts = ((*known, *(empty,) * width)[:width] for known, empty in ((before.sums, 0.0), (before.counts, 0)))
    added = [_added(total, column) for total, column in zip(sums, zip(*rows, strict=True), strict=True)]
    return Measured(
        rows[-1],
        tuple(total for total, _ in added),
        tuple(count + more for count, (_, more) in zip(counts, added, strict=True)),
    )


def _added(total: float, column: Sequence[float]) -> tuple[float, int]:
    """Return a sum with the values of a column, and how many they are. A NaN is none."""
    numbers = [value for value in column if value == value]  # noqa: PLR0124 - not a NaN
    for value in numbers:
        total += value
    return one_nan(total) if numbers else total, len(numbers)
