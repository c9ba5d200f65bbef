"""Parts of which healthy losses are composed: noise, courses, swings, rare batches; all drawn from a numpy generator.

Arrays have one row a run and one column a step. A `Series` is a shape drawn: losses, gradient norms, learning rates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

Array = np.ndarray


class Series(NamedTuple):
    """Runs of one shape; norms and rates may be those of all runs alike."""

    loss: Array
    norm: Array
    rate: Array


class Shape(NamedTuple):
    """A healthy shape: `draw(generator, runs, steps)`. `kind` groups shapes that differ in their numbers."""

    kind: str
    name: str
    draw: Callable[[Generator, int, int], Series]


def steps_of(runs: int, steps: int) -> Array:
    return np.broadcast_to(np.arange(steps, dtype=float), (runs, steps))


# -- noise, added to a loss's logarithm --------------------------------------------------------------------------------


def normal(rng: Generator, runs: int, steps: int, spread: float) -> Array:
    return rng.normal(0.0, spread, (runs, steps))


def student(rng: Generator, runs: int, steps: int, spread: float, df: float = 4.0) -> Array:
    return spread * rng.standard_t(df, (runs, steps))


def pareto(rng: Generator, runs: int, steps: int, alpha: float) -> Array:
    """Logarithm of a Pareto variable: losses of a heavy right tail."""
    return rng.exponential(1.0 / alpha, (runs, steps))


def correlated(rng: Generator, runs: int, steps: int, spread: float, phi: float) -> Array:
    """AR(1) with a standard deviation of `spread`; begins stationary."""
    shocks = rng.normal(0.0, spread * np.sqrt(1.0 - phi * phi), (steps, runs))
    value = rng.normal(0.0, spread, runs)
    found = np.empty((steps, runs))
    for t in range(steps):
        value = phi * value + shocks[t]
        found[t] = value
    return found.T


def walk(rng: Generator, runs: int, steps: int, step: float, low: float, high: float) -> Array:
    """A random walk between two walls that throw it back."""
    total = np.cumsum(rng.normal(0.0, step, (runs, steps)), axis=1) + rng.uniform(low, high, (runs, 1)) - low
    width = high - low
    folded = np.mod(total, 2.0 * width)
    return low + np.where(folded > width, 2.0 * width - folded, folded)


# -- courses, logarithms of a loss -------------------------------------------------------------------------------------


def decay(runs: int, steps: int, first: float = 2.5, last: float = 0.5, tau: float = 500.0) -> Array:
    return np.log(last + (first - last) * np.exp(-steps_of(runs, steps) / tau))


def power(runs: int, steps: int, first: float = 8.0, exponent: float = 0.3, offset: float = 10.0) -> Array:
    return np.log(first) - exponent * np.log1p(steps_of(runs, steps) / offset)


def stairs(rng: Generator, runs: int, steps: int, first: float, last: float, count: int, width: float = 20.0) -> Array:
    """Plateaus, left one after the other."""
    at, t = np.sort(rng.uniform(0, steps, (runs, count)), axis=1), steps_of(runs, steps)
    drop = sum(1.0 / (1.0 + np.exp(-np.clip((t - at[:, k : k + 1]) / width, -50, 50))) for k in range(count))
    return np.log(first) + (np.log(last) - np.log(first)) * drop / count


# -- what comes and goes, added to a logarithm -------------------------------------------------------------------------


def wave(rng: Generator, runs: int, steps: int, ratio: float, period: float, form: str = "sine") -> Array:
    """Return values between 0 and log(ratio), from a drawn phase. `saw` rises slowly and falls at once; `teeth` the
    reverse.
    """
    phase = np.mod(steps_of(runs, steps) / period + rng.uniform(0, 1, (runs, 1)), 1.0)
    forms = {
        "sine": 0.5 - 0.5 * np.cos(2 * np.pi * phase),
        "saw": phase,
        "teeth": 1.0 - phase,
        "square": (phase > 0.5).astype(float),
        "pulse": (phase > 0.85).astype(float),
    }
    return np.log(ratio) * forms[form]


def bumps(rng: Generator, runs: int, steps: int, every: float, height: float, rise: float, fall: float) -> Array:
    """Rises of about `height` (a factor) that come `every` so many steps and heal: a slingshot, a restart."""
    found, t = np.zeros((runs, steps)), np.arange(steps)
    for run in range(runs):
        at = rng.exponential(every) + 100
        while at < steps:
            size = np.log(height) * rng.uniform(0.6, 1.0)
            since = t - at
            shape = np.where(since < 0, np.exp(np.clip(since / rise, -50, 0)), np.exp(-np.clip(since, 0, None) / fall))
            found[run] = np.maximum(found[run], size * shape)
            at += rng.exponential(every) + 4 * fall
    return found


def blocks(rng: Generator, runs: int, steps: int, length: int, ratio: float, heal: float) -> Array:
    """A curriculum: each `length` steps the data changes, the loss rises by up to `ratio` and is learnt down again."""
    within = np.mod(np.arange(steps), length)
    number = np.arange(steps) // length
    sizes = rng.uniform(0.3, 1.0, (runs, number[-1] + 1)) * np.log(ratio)
    sizes[:, 0] = 0.0
    return sizes[:, number] * np.exp(-within / heal)


def minority(rng: Generator, runs: int, steps: int, share: float, ratio: float) -> Array:
    """Batches of a second kind, drawn with `share`."""
    return np.log(ratio) * (rng.uniform(0, 1, (runs, steps)) < share)


def bursts(rng: Generator, runs: int, steps: int, share: float, ratio: float, length: int) -> Array:
    """The same, a few in a row: a loader that does not shuffle."""
    begins = rng.uniform(0, 1, (runs, steps)) < share / length
    held = np.zeros((runs, steps), dtype=bool)
    for ahead in range(length):
        held[:, ahead:] |= begins[:, : steps - ahead] if ahead else begins
    return np.log(ratio) * held


# -- gradient norms and rates ------------------------------------------------------------------------------------------


def norms(rng: Generator, log_loss: Array, share: float = 0.5, spread: float = 0.3) -> Array:
    """Norms that follow the loss by a power of it, with noise of their own."""
    runs, steps = log_loss.shape
    return np.exp(share * np.clip(log_loss, -30, 30) + rng.normal(0.0, spread, (runs, steps)))


def cosine(steps: int, period: int, top: float = 0.1, warm: int = 0) -> Array:
    """A cosine schedule with warm restarts, after a linear warm-up."""
    t = np.arange(steps, dtype=float)
    rate = top * (0.01 + 0.99 * (0.5 + 0.5 * np.cos(np.pi * np.mod(t, period) / period)))
    return np.minimum(rate, top * (t + 1) / warm) if warm else rate


def positive(rng: Generator, log_loss: Array, rate: Array | float = 0.1, share: float = 0.5) -> Series:
    """The series of a loss given by its logarithm."""
    rates = np.broadcast_to(np.asarray(rate, dtype=float), log_loss.shape[1:])
    return Series(np.exp(log_loss), norms(rng, log_loss, share), rates)


def signed(rng: Generator, loss: Array) -> Series:
    """The series of a loss of either sign."""
    return Series(loss, np.exp(rng.normal(0.0, 0.4, loss.shape)), np.full(loss.shape[1], 0.1))
