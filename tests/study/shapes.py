"""Healthy shapes by which the detector's constants were chosen. Those that judged them are in `judging.py`."""

from __future__ import annotations

import numpy as np

from tests.study.courses import (
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


def _decaying(noise, *parameters):
    return lambda rng, n, t: positive(rng, decay(n, t) + noise(rng, n, t, *parameters))


def _power(first, exponent, spread):
    return lambda rng, n, t: positive(rng, power(n, t, first, exponent) + normal(rng, n, t, spread))


def _memorised(last, spread, height=None):
    def draw(rng, n, t):
        course = decay(n, t, 2.3, last, 120.0) + normal(rng, n, t, spread)
        if height:
            # Slingshots come once the data is known by heart.
            course += bumps(rng, n, t, 900.0, height, 6.0, 25.0) * (steps_of(n, t) > 1500)
        return positive(rng, course)

    return draw


def _waving(ratio, period, form, spread=0.1, flat=False):
    def draw(rng, n, t):
        course = np.zeros((n, t)) if flat else decay(n, t, 2.0, 1.0, 300.0)
        return positive(rng, course + wave(rng, n, t, ratio, period, form) + normal(rng, n, t, spread))

    return draw


def _walking(step, width, spread):
    return lambda rng, n, t: positive(rng, walk(rng, n, t, step, 0.0, np.log(width)) + normal(rng, n, t, spread))


def _restarting(period, height, fall, told):
    """Warm restarts: with each the loss rises within some steps, and falls with the rate."""

    def draw(rng, n, t):
        since = np.mod(np.arange(t), period) * (np.arange(t) >= period)
        rise = np.log(height) * (1 - np.exp(-since / 10.0)) * np.exp(-since / fall)
        course = decay(n, t, 2.3, 0.2, 400.0) + rise + normal(rng, n, t, 0.1)
        return positive(rng, course, cosine(t, period) if told else 0.1)

    return draw


def _curriculum(length, ratio, heal, spread=0.1):
    return lambda rng, n, t: positive(
        rng, decay(n, t) + blocks(rng, n, t, length, ratio, heal) + normal(rng, n, t, spread)
    )


def _mixed(share, ratio, spread=0.05):
    return lambda rng, n, t: positive(rng, decay(n, t) + minority(rng, n, t, share, ratio) + normal(rng, n, t, spread))


def _bursting(share, ratio, length):
    return lambda rng, n, t: positive(
        rng, decay(n, t) + bursts(rng, n, t, share, ratio, length) + normal(rng, n, t, 0.1)
    )


def _stairs(count, first, last):
    return lambda rng, n, t: positive(rng, stairs(rng, n, t, first, last, count) + normal(rng, n, t, 0.05))


def _fine_tuned(level, noise, *parameters):
    return lambda rng, n, t: positive(rng, np.log(level) - steps_of(n, t) * 1e-5 + noise(rng, n, t, *parameters))


def _hinge(zeros):
    def draw(rng, n, t):
        series = positive(rng, decay(n, t, 1.0, 0.05, 300.0) + normal(rng, n, t, 0.5))
        keep = rng.uniform(0, 1, (n, t)) >= zeros
        return series._replace(loss=series.loss * keep, norm=series.norm * keep)

    return draw


def _gaining(scale, phi):
    """A policy's loss: around zero, whatever is learnt."""
    return lambda rng, n, t: signed(rng, scale * correlated(rng, n, t, 1.0, phi))


def _likelihood(first, last, tau, spread):
    """A negative log likelihood that falls through zero."""
    return lambda rng, n, t: signed(
        rng, last + (first - last) * np.exp(-steps_of(n, t) / tau) + normal(rng, n, t, spread)
    )


def _widening(spread, times):
    """Noise that grows slowly."""

    def draw(rng, n, t):
        share = steps_of(n, t) / t
        return positive(rng, decay(n, t) + normal(rng, n, t, spread) * times**share)

    return draw


def _both(ratio, phi, spread):
    """A generator's or discriminator's loss: it swings, and what it swings around drifts."""

    def draw(rng, n, t):
        return positive(
            rng, wave(rng, n, t, ratio, 150.0) + correlated(rng, n, t, spread, phi) + normal(rng, n, t, 0.15)
        )

    return draw


SHAPES = [
    Shape("decay", "normal 0.05", _decaying(normal, 0.05)),
    Shape("decay", "normal 0.01", _decaying(normal, 0.01)),
    Shape("decay", "normal 0.3", _decaying(normal, 0.3)),
    Shape("power law", "8, -0.3, noise 0.05", _power(8.0, 0.3, 0.05)),
    Shape("power law", "11, -0.08, noise 0.02", _power(11.0, 0.08, 0.02)),
    Shape("power law", "5, -0.6, noise 0.2", _power(5.0, 0.6, 0.2)),
    Shape("heavy tails", "0.05 t(4)", _decaying(student, 0.05, 4.0)),
    Shape("heavy tails", "0.05 t(2)", _decaying(student, 0.05, 2.0)),
    Shape("heavy tails", "0.2 t(3)", _decaying(student, 0.2, 3.0)),
    Shape("heavy tails", "Pareto 3", _decaying(pareto, 3.0)),
    Shape("heavy tails", "Pareto 1.5", _decaying(pareto, 1.5)),
    Shape("batch of one", "normal 0.7", _decaying(normal, 0.7)),
    Shape("batch of one", "normal 1.0", _decaying(normal, 1.0)),
    Shape("batch of one", "normal 1.5", _decaying(normal, 1.5)),
    Shape("correlated", "AR 0.9, 0.2", _decaying(correlated, 0.2, 0.9)),
    Shape("correlated", "AR 0.99, 0.2", _decaying(correlated, 0.2, 0.99)),
    Shape("correlated", "AR 0.995, 0.3", _decaying(correlated, 0.3, 0.995)),
    Shape("correlated", "AR 0.999, 0.3", _decaying(correlated, 0.3, 0.999)),
    Shape("memorised", "1e-4, noise 0.5", _memorised(1e-4, 0.5)),
    Shape("memorised", "1e-6, noise 2", _memorised(1e-6, 2.0)),
    Shape("memorised", "1e-3, slingshots x20", _memorised(1e-3, 0.3, 20.0)),
    Shape("memorised", "1e-4, slingshots x300", _memorised(1e-4, 0.5, 300.0)),
    Shape("fine-tuned", "0.02, noise 0.3", _fine_tuned(0.02, normal, 0.3)),
    Shape("fine-tuned", "1.5, noise 0.05", _fine_tuned(1.5, normal, 0.05)),
    Shape("fine-tuned", "0.3, 0.2 t(3)", _fine_tuned(0.3, student, 0.2, 3.0)),
    Shape("fine-tuned", "0.1, noise 1", _fine_tuned(0.1, normal, 1.0)),
    Shape("swings", "x1.5 in 60, sine", _waving(1.5, 120, "sine")),
    Shape("swings", "x2.2 in 200, sine", _waving(2.2, 400, "sine")),
    Shape("swings", "x3.2, period 400, sine", _waving(3.2, 400, "sine")),
    Shape("swings", "x3.2, period 3000, sine", _waving(3.2, 3000, "sine")),
    Shape("swings", "x4, period 200, saw", _waving(4.0, 200, "saw")),
    Shape("swings", "x4, period 1000, saw", _waving(4.0, 1000, "saw")),
    Shape("swings", "x3, period 300, teeth", _waving(3.0, 300, "teeth")),
    Shape("swings", "x2.5, period 600, square", _waving(2.5, 600, "square")),
    Shape("swings", "x3, period 200, pulse", _waving(3.0, 200, "pulse")),
    Shape("two players", "x1.8, AR 0.99", _both(1.8, 0.99, 0.25)),
    Shape("two players", "x2.5, AR 0.95", _both(2.5, 0.95, 0.2)),
    Shape("walk", "0.01, x2", _walking(0.01, 2.0, 0.05)),
    Shape("walk", "0.03, x3", _walking(0.03, 3.0, 0.1)),
    Shape("walk", "0.1, x2.5", _walking(0.1, 2.5, 0.1)),
    Shape("warm restarts", "+50 % in 30, each 300, rate known", _restarting(300, 1.5, 80.0, True)),
    Shape("warm restarts", "+50 % in 30, each 300, rate unknown", _restarting(300, 1.5, 80.0, False)),
    Shape("warm restarts", "x5, each 1000, rate known", _restarting(1000, 5.0, 300.0, True)),
    Shape("warm restarts", "x3, each 700, rate unknown", _restarting(700, 3.0, 200.0, False)),
    Shape("curriculum", "+40 % each 250", _curriculum(250, 1.4, 100.0)),
    Shape("curriculum", "x2.5 each 500", _curriculum(500, 2.5, 150.0)),
    Shape("curriculum", "x3 each 1500, slow", _curriculum(1500, 3.0, 600.0)),
    Shape("second kind", "5 %, x5", _mixed(0.05, 5.0)),
    Shape("second kind", "1 %, x10", _mixed(0.01, 10.0)),
    Shape("second kind", "0.3 %, x3", _mixed(0.003, 3.0)),
    Shape("second kind", "20 %, x20", _mixed(0.2, 20.0)),
    Shape("second kind", "5 %, x5, eight in a row", _bursting(0.05, 5.0, 8)),
    Shape("plateaus", "3 of 8 to 0.8", _stairs(3, 8.0, 0.8)),
    Shape("plateaus", "6 of 5 to 0.01", _stairs(6, 5.0, 0.01)),
    Shape("zeros", "70 % zero", _hinge(0.7)),
    Shape("zeros", "20 % zero", _hinge(0.2)),
    Shape("signed", "around 0, 0.05", _gaining(0.05, 0.0)),
    Shape("signed", "around 0, AR 0.95", _gaining(2.0, 0.95)),
    Shape("signed", "500 to -20", _likelihood(500.0, -20.0, 400.0, 4.0)),
    Shape("signed", "3 to -2", _likelihood(3.0, -2.0, 500.0, 0.1)),
    Shape("growing noise", "0.05, sixfold", _widening(0.05, 6.0)),
    Shape("growing noise", "0.1, tenfold", _widening(0.1, 10.0)),
]
