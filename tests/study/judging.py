"""Healthy shapes and random compositions that judged the detector: no constant was chosen by them.

Numbers differ from those of `shapes.py`, and half of the kinds are not there. docs/detection-study.md says what came
out when they were first looked at.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from tests.study.courses import (
    Array,
    Series,
    Shape,
    blocks,
    bumps,
    bursts,
    correlated,
    cosine,
    decay,
    minority,
    normal,
    pareto,
    positive,
    power,
    signed,
    stairs,
    steps_of,
    student,
    walk,
    wave,
)


def _of(course, *additions):
    """The logarithm of a loss: a course of (runs, steps), and what is added to it."""
    return lambda rng, n, t: positive(rng, course(n, t) + sum(part(rng, n, t) for part in additions))


def _part(draw, *parameters):
    return lambda rng, n, t: draw(rng, n, t, *parameters)


def _course(first, last, tau):
    return lambda n, t: decay(n, t, first, last, tau)


def _flat(level):
    return lambda n, t: np.full((n, t), np.log(level))


FALLING = _course(2.5, 0.5, 500.0)


def _plateaus(n, t):
    """Four levels from 3 to 0.1."""
    return np.log(3.0) - 3.4 * np.clip(np.floor(steps_of(n, t) / t * 4) / 3, 0, 1)


def _slingshots(rng, n, t):
    """Bumps of up to eight times, after step 1000."""
    return bumps(rng, n, t, 1200.0, 8.0, 10.0, 40.0) * (steps_of(n, t) > 1000)


def _teaching(period: int, growth: float):
    """Temporal differences: every `period` steps the target network is copied, and the loss leaps and falls. Returns
    grow.
    """

    def draw(rng: Generator, n: int, t: int) -> Series:
        since = np.mod(np.arange(t), period)
        grown = np.log1p(growth * np.arange(t) / t)
        leaps = np.log(2.0) * np.exp(-since / (period / 5)) * rng.uniform(0.5, 1.0, (n, 1))
        return positive(rng, grown + leaps + correlated(rng, n, t, 0.3, 0.9) + normal(rng, n, t, 0.3))

    return draw


def _contrasting(rng: Generator, n: int, t: int) -> Series:
    """From the logarithm of the batch, a plateau first, then down; noise that shrinks with the loss."""
    fall = 1.0 / (1.0 + np.exp((steps_of(n, t) - rng.uniform(200, 800, (n, 1))) / 120.0))
    return positive(rng, np.log(0.4 + 5.1 * fall) + normal(rng, n, t, 0.08))


def _cycling(period: int, ratio: float):
    """A triangular rate, up and down, that the loss follows."""

    def draw(rng: Generator, n: int, t: int) -> Series:
        phase = np.mod(np.arange(t) / period, 1.0)
        up = 1.0 - np.abs(2.0 * phase - 1.0)
        return positive(
            rng, decay(n, t, 2.3, 0.4, 600.0) + np.log(ratio) * up + normal(rng, n, t, 0.08), 0.01 + 0.2 * up
        )

    return draw


def _epochs(length: int, ratio: float):
    """Each epoch has the same order, with easy and hard batches at their places; they are learnt by heart meanwhile."""

    def draw(rng: Generator, n: int, t: int) -> Series:
        places = rng.normal(0.0, np.log(ratio) / 2.0, (n, length))
        return positive(rng, decay(n, t, 2.0, 0.3, 700.0) + places[:, np.arange(t) % length] + normal(rng, n, t, 0.05))

    return draw


def _warming(rng: Generator, n: int, t: int) -> Series:
    """A warm-up: the loss stands, rises by a third at the highest rate, and falls."""
    rise = np.log(1.35) * np.exp(-(((steps_of(n, t) - 300.0) / 120.0) ** 2))
    return positive(rng, power(n, t, 9.0, 0.25, 300.0) + rise + normal(rng, n, t, 0.04), cosine(t, t, 0.1, 300))


def _advantage(rng: Generator, n: int, t: int) -> Series:
    """A policy's loss: around zero, heavy tails, an amplitude that wanders."""
    amplitude = np.exp(walk(rng, n, t, 0.01, -1.0, 1.0))
    return signed(rng, amplitude * (0.02 * rng.standard_t(4.0, (n, t)) + 0.1 * correlated(rng, n, t, 1.0, 0.97)))


def _bound(rng: Generator, n: int, t: int) -> Series:
    """A negative lower bound whose term of divergence comes in between steps 500 and 1500."""
    comes = np.clip((steps_of(n, t) - 500.0) / 1000.0, 0.0, 1.0)
    return signed(rng, 90.0 * np.exp(-steps_of(n, t) / 250.0) - 40.0 + 6.0 * comes + normal(rng, n, t, 1.5))


def _critic(rng: Generator, n: int, t: int) -> Series:
    """Of two players, with gradients punished: below zero, slowly up and down."""
    return signed(rng, -5.0 + 1.5 * wave(rng, n, t, np.e, 900.0) + normal(rng, n, t, 0.4))


SHAPES = [
    Shape("decay", "noise 0.15", _of(_course(4.0, 0.3, 900.0), _part(normal, 0.15))),
    Shape("decay", "noise 0.5", _of(_course(2.3, 0.05, 300.0), _part(normal, 0.5))),
    Shape("power law", "6, -0.45, noise 0.1", _of(lambda n, t: power(n, t, 6.0, 0.45, 30.0), _part(normal, 0.1))),
    Shape("heavy tails", "0.1 t(2.5)", _of(_course(3.0, 0.8, 400.0), _part(student, 0.1, 2.5))),
    Shape("heavy tails", "Pareto 2", _of(_course(3.0, 0.8, 400.0), _part(pareto, 2.0))),
    Shape("heavy tails", "0.3 t(4)", _of(_flat(1.0), _part(student, 0.3, 4.0))),
    Shape("batch of one", "noise 1.2", _of(_course(2.0, 0.6, 800.0), _part(normal, 1.2))),
    Shape("correlated", "AR 0.98, 0.35", _of(_course(2.0, 0.6, 800.0), _part(correlated, 0.35, 0.98))),
    Shape("correlated", "AR 0.9995, 0.4", _of(_flat(2.0), _part(correlated, 0.4, 0.9995), _part(normal, 0.1))),
    Shape("memorised", "3e-5, noise 0.8", _of(_course(2.3, 3e-5, 90.0), _part(normal, 0.8))),
    Shape("memorised", "1e-3, noise 0.02", _of(_course(2.3, 1e-3, 150.0), _part(normal, 0.02))),
    Shape("fine-tuned", "0.7, 0.1 t(3)", _of(_flat(0.7), _part(student, 0.1, 3.0))),
    Shape("swings", "x2.8, period 700, sine", _of(_flat(1.0), _part(wave, 2.8, 700.0), _part(normal, 0.08))),
    Shape("swings", "x3.5, period 120, sine", _of(_flat(1.0), _part(wave, 3.5, 120.0), _part(normal, 0.2))),
    Shape("swings", "x2, period 90, square", _of(_flat(1.0), _part(wave, 2.0, 90.0, "square"), _part(normal, 0.05))),
    Shape("swings", "x3, period 2500, saw", _of(_flat(1.0), _part(wave, 3.0, 2500.0, "saw"), _part(normal, 0.05))),
    Shape("walk", "0.02, x2.5", _of(_flat(0.5), _part(walk, 0.02, 0.0, np.log(2.5)), _part(normal, 0.1))),
    Shape("walk", "0.05, x3", _of(_flat(0.5), _part(walk, 0.05, 0.0, np.log(3.0)), _part(normal, 0.3))),
    Shape("curriculum", "x1.8 each 400", _of(FALLING, _part(blocks, 400, 1.8, 120.0), _part(normal, 0.07))),
    Shape("curriculum", "x2.8 each 900", _of(FALLING, _part(blocks, 900, 2.8, 250.0), _part(normal, 0.2))),
    Shape("second kind", "2 %, x30", _of(FALLING, _part(minority, 0.02, 30.0), _part(normal, 0.1))),
    Shape("second kind", "10 %, x4", _of(FALLING, _part(minority, 0.1, 4.0), _part(normal, 0.02))),
    Shape("second kind", "3 %, x4, five in a row", _of(FALLING, _part(bursts, 0.03, 4.0, 5), _part(normal, 0.1))),
    Shape("plateaus", "4 of 3 to 0.1", _of(_plateaus, _part(normal, 0.1))),
    Shape("slingshots", "x8 on 0.02", _of(_course(2.3, 0.02, 150.0), _slingshots, _part(normal, 0.2))),
    Shape("temporal differences", "target each 250, growing sixfold", _teaching(250, 5.0)),
    Shape("temporal differences", "target each 1000, growing threefold", _teaching(1000, 2.0)),
    Shape("contrastive", "from 5.5 to 0.4", _contrasting),
    Shape("cyclic rate", "x1.8, period 500", _cycling(500, 1.8)),
    Shape("cyclic rate", "x3, period 1500", _cycling(1500, 3.0)),
    Shape("fixed order", "50 batches within x6", _epochs(50, 6.0)),
    Shape("fixed order", "400 batches within x3", _epochs(400, 3.0)),
    Shape("warm-up", "a rise of a third at the top", _warming),
    Shape("signed", "advantages", _advantage),
    Shape("signed", "a bound whose divergence comes in", _bound),
    Shape("signed", "a critic", _critic),
]  # fmt: skip


def composed(rng: Generator, steps: int) -> tuple[Series, float | None]:
    """One random composition: a course, noise, up to three things that come and go; and the unit, if it is signed."""
    if rng.uniform() < 0.15:
        return _composed_signed(rng, steps)
    log_loss = _composed_course(rng, steps) + _composed_noise(rng, steps)
    rate: Array | float = 0.1
    for _ in range(rng.integers(0, 4)):
        addition, its_rate = _composed_addition(rng, steps)
        log_loss = log_loss + addition
        rate = rate if its_rate is None else its_rate
    return positive(rng, log_loss, rate, share=float(rng.uniform(0.0, 1.0))), None


def _composed_course(rng: Generator, t: int) -> Array:
    first = float(np.exp(rng.uniform(np.log(0.5), np.log(20.0))))
    drawn = rng.integers(0, 4)
    if drawn == 0:
        return decay(1, t, first, first * float(np.exp(-rng.uniform(0.0, 6.0))), float(rng.uniform(50.0, 2000.0)))
    if drawn == 1:
        return power(1, t, first, float(rng.uniform(0.02, 0.7)), float(np.exp(rng.uniform(0.0, 5.0))))
    if drawn == 2:
        return stairs(rng, 1, t, first, first * float(np.exp(-rng.uniform(0.5, 5.0))), int(rng.integers(1, 6)))
    return np.full((1, t), np.log(first))


def _composed_noise(rng: Generator, t: int) -> Array:
    spread = float(np.exp(rng.uniform(np.log(0.01), np.log(1.0))))
    drawn = rng.integers(0, 4)
    if drawn == 0:
        return student(rng, 1, t, spread / 2.0, float(rng.uniform(2.2, 8.0)))
    if drawn == 1:
        return pareto(rng, 1, t, float(rng.uniform(1.5, 6.0)))
    if drawn == 2:
        phi = 1.0 - float(np.exp(rng.uniform(np.log(0.001), np.log(0.5))))
        return correlated(rng, 1, t, min(spread, 0.3), phi) + normal(rng, 1, t, spread / 3.0)
    return normal(rng, 1, t, spread)


def _composed_addition(rng: Generator, t: int) -> tuple[Array, Array | None]:
    period, ratio = float(np.exp(rng.uniform(np.log(40.0), np.log(3000.0)))), float(rng.uniform(1.1, 2.2))
    drawn = rng.integers(0, 6)
    if drawn == 0:
        return wave(rng, 1, t, ratio, period, str(rng.choice(["sine", "saw", "teeth", "square", "pulse"]))), None
    if drawn == 1:
        return minority(
            rng, 1, t, float(np.exp(rng.uniform(np.log(0.002), np.log(0.15)))), float(rng.uniform(2.0, 15.0))
        ), None
    if drawn == 2:
        return bursts(
            rng, 1, t, float(rng.uniform(0.005, 0.05)), float(rng.uniform(2.0, 6.0)), int(rng.integers(2, 9))
        ), None
    if drawn == 3:
        return blocks(rng, 1, t, int(max(150.0, period)), ratio, float(rng.uniform(30.0, 300.0))), None
    if drawn == 4:
        return walk(rng, 1, t, float(rng.uniform(0.002, 0.05)), 0.0, np.log(ratio)), None
    length = int(max(200.0, period))
    since = np.mod(np.arange(t), length) * (np.arange(t) >= length)
    rise = np.log(ratio) * (1 - np.exp(-since / 15.0)) * np.exp(-since / (length / 3.0))
    return rise[None, :], cosine(t, length) if rng.uniform() < 0.5 else None


def _composed_signed(rng: Generator, t: int) -> tuple[Series, float | None]:
    """Half of the tasks name a unit: between once and ten times the noise."""
    spread = float(np.exp(rng.uniform(np.log(0.01), np.log(3.0))))
    fall, last = spread * float(rng.uniform(0.0, 200.0)), spread * float(rng.uniform(-50.0, 10.0))
    loss = last + fall * np.exp(-steps_of(1, t) / float(rng.uniform(50.0, 1000.0)))
    loss = loss + spread * (
        correlated(rng, 1, t, 1.0, float(rng.uniform(0.0, 0.99)))
        if rng.uniform() < 0.5
        else student(rng, 1, t, 0.7, 5.0)
    )
    if rng.uniform() < 0.5:
        loss = loss + spread * float(rng.uniform(0.0, 4.0)) * wave(rng, 1, t, np.e, float(rng.uniform(50.0, 3000.0)))
    return signed(rng, loss), spread * float(rng.uniform(1.0, 10.0)) if rng.uniform() < 0.5 else None
