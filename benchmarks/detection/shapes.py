"""Healthy sequences of losses in kinds that no earlier study had, and language models that lose their way.

A shape draws losses of (runs, steps) from a numpy generator; norms follow the loss by its square root.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from tolariad.core.calc.detection.detector import Detector
from tolariad.core.calc.detection.rules import Action, Finding, is_watched
from tolariad.core.calc.detection.watch import Outcome, Watch, followed

Array = np.ndarray
Draw = Callable[[Generator, int, int], Array]
SEED = 21
RUNS, STEPS = 12, 4000


class Shape(NamedTuple):
    """A healthy shape: `draw` returns losses of (runs, steps)."""

    kind: str
    name: str
    draw: Draw


def _noise(rng: Generator, n: int, t: int, size: float) -> Array:
    return np.exp(rng.normal(0.0, size, (n, t)))


def _fall(n: int, t: int, first: float, last: float, tau: float) -> Array:
    return np.broadcast_to(last + (first - last) * np.exp(-np.arange(t) / tau), (n, t)).copy()


def grokked(level: float, size: float) -> Draw:
    """Learnt by heart early; understood at a drawn step, when the loss falls once more within some tens of steps."""

    def draw(rng: Generator, n: int, t: int) -> Array:
        at = rng.uniform(0.3 * t, 0.8 * t, (n, 1))
        drop = 1.0 / (1.0 + np.exp(np.clip((np.arange(t) - at) / 30.0, -50.0, 50.0)))
        return _fall(n, t, 3.0, level, 150.0) * (0.02 + 0.98 * drop) * _noise(rng, n, t, size)

    return draw


def humped(times: float, width: float) -> Draw:
    """Double descent: the loss rises once, slowly, and falls below what it was."""

    def draw(rng: Generator, n: int, t: int) -> Array:
        at = rng.uniform(0.3 * t, 0.6 * t, (n, 1))
        hump = np.exp(np.log(times) * np.exp(-(((np.arange(t) - at) / width) ** 2)))
        return _fall(n, t, 2.5, 0.5, 500.0) * hump * _noise(rng, n, t, 0.1)

    return draw


def growing_batch(stages: int, size: float) -> Draw:
    """The batch is doubled in stages: noise shrinks by the root of two each time, and the loss falls a little."""

    def draw(rng: Generator, n: int, t: int) -> Array:
        stage = np.arange(t) * stages // t
        return _fall(n, t, 2.5, 0.5, 600.0) * 0.95**stage * np.exp(rng.normal(0.0, 1.0, (n, t)) * size * 0.707**stage)

    return draw


def in_turn(tasks: int, ratio: float) -> Draw:
    """Tasks come in turn; the loudest has `ratio` times the loss of the quietest."""

    def draw(rng: Generator, n: int, t: int) -> Array:
        levels = np.exp(rng.uniform(0.0, np.log(ratio), (n, tasks)))
        return _fall(n, t, 2.0, 0.4, 500.0) * levels[:, np.arange(t) % tasks] * _noise(rng, n, t, 0.08)

    return draw


def with_floor(last: float, floor: float) -> Draw:
    """A term with a floor joins in mid-run (smoothing of labels): a level that stays, with little noise."""

    def draw(rng: Generator, n: int, t: int) -> Array:
        at = rng.integers(t // 3, 2 * t // 3, (n, 1))
        is_on = np.arange(t) >= at
        return _fall(n, t, 2.3, last, 200.0) * _noise(rng, n, t, 0.3) + is_on * floor * _noise(rng, n, t, 0.03)

    return draw


def rescaled(times: float) -> Draw:
    """The unit of the loss changes in mid-run: rewards, or a weight of the loss."""

    def draw(rng: Generator, n: int, t: int) -> Array:
        at = rng.integers(t // 3, 2 * t // 3, (n, 1))
        return _fall(n, t, 2.0, 0.3, 400.0) * np.where(np.arange(t) >= at, times, 1.0) * _noise(rng, n, t, 0.15)

    return draw


def by_length(ratio: float, epoch: int) -> Draw:
    """Each epoch goes from short samples to long ones, whose loss is `ratio` times as high."""

    def draw(rng: Generator, n: int, t: int) -> Array:
        within = np.mod(np.arange(t), epoch) / epoch
        return _fall(n, t, 2.0, 0.5, 700.0) * ratio**within * _noise(rng, n, t, 0.08)

    return draw


def in_threes(times: float, every: float) -> Draw:
    """A rare source comes in threes, `times` as loud."""

    def draw(rng: Generator, n: int, t: int) -> Array:
        losses = _fall(n, t, 2.3, 0.3, 400.0) * _noise(rng, n, t, 0.08)
        begins = rng.uniform(0.0, 1.0, (n, t)) < 1.0 / every
        for ahead in range(3):
            losses[:, ahead:] *= np.where(begins[:, : t - ahead], times, 1.0)
        return np.minimum(losses, 1e6)

    return draw


def clustered(size: float, stays: float) -> Draw:
    """The noise itself comes in clusters: calm hundreds of steps, then wild ones."""

    def draw(rng: Generator, n: int, t: int) -> Array:
        heat, found = np.zeros(n), np.empty((t, n))
        for step in range(t):
            heat = stays * heat + np.sqrt(1.0 - stays**2) * rng.normal(0.0, 1.0, n)
            found[step] = rng.normal(0.0, 1.0, n) * size * np.exp(heat)
        return _fall(n, t, 2.5, 0.6, 500.0) * np.exp(np.clip(found.T, -6.0, 6.0))

    return draw


def counted(samples: int, share: float) -> Draw:
    """A loss that counts errors: multiples of 1 / samples, now and then nothing at all."""

    def draw(rng: Generator, n: int, t: int) -> Array:
        rate = _fall(n, t, 0.9, share, 300.0)
        return rng.binomial(samples, np.clip(rate, 0.0, 1.0)) / samples

    return draw


def short_ends(epoch: int, size: float) -> Draw:
    """The last batch of each epoch has a few samples only."""

    def draw(rng: Generator, n: int, t: int) -> Array:
        is_last = np.arange(t) % epoch == epoch - 1
        return _fall(n, t, 2.5, 0.4, 500.0) * np.exp(rng.normal(0.0, 1.0, (n, t)) * np.where(is_last, size, 0.05))

    return draw


def by_time(low: float, high: float) -> Draw:
    """A diffusion model: each batch has a time, and the loss depends on it over decades."""

    def draw(rng: Generator, n: int, t: int) -> Array:
        times = rng.uniform(0.0, 1.0, (n, t))
        return _fall(n, t, 1.5, 1.0, 500.0) * low * (high / low) ** times * _noise(rng, n, t, 0.1)

    return draw


def by_heart(epoch: int, times: float) -> Draw:
    """The loss falls by steps at the epochs' begins, each after a short spike: momentum meets known samples again."""

    def draw(rng: Generator, n: int, t: int) -> Array:
        number, within = np.arange(t) // epoch, np.arange(t) % epoch
        spike = np.where((within < 4) & (number > 1), times, 1.0)
        return 2.0 * 0.7**number * spike * _noise(rng, n, t, 0.1) + 1e-4

    return draw


SHAPES: tuple[Shape, ...] = (
    Shape("grokked", "0.3", grokked(0.3, 0.1)),
    Shape("grokked", "0.02, wild", grokked(0.02, 0.6)),
    Shape("humped", "x1.8 over 400", humped(1.8, 400.0)),
    Shape("humped", "x3 over 800", humped(3.0, 800.0)),
    Shape("humped", "x3.5 over 300", humped(3.5, 300.0)),
    Shape("growing batch", "four stages, 0.3", growing_batch(4, 0.3)),
    Shape("growing batch", "eight stages, 0.8", growing_batch(8, 0.8)),
    Shape("tasks in turn", "3, within x6", in_turn(3, 6.0)),
    Shape("tasks in turn", "7, within x30", in_turn(7, 30.0)),
    Shape("tasks in turn", "40, within x10", in_turn(40, 10.0)),
    Shape("a floor joins", "0.5 on 0.02", with_floor(0.02, 0.5)),
    Shape("a floor joins", "0.5 on 0.2", with_floor(0.2, 0.5)),
    Shape("a floor joins", "0.9 on 0.001", with_floor(0.001, 0.9)),
    Shape("another unit", "x3", rescaled(3.0)),
    Shape("another unit", "x10", rescaled(10.0)),
    Shape("another unit", "x100", rescaled(100.0)),
    Shape("another unit", "x0.01", rescaled(0.01)),
    Shape("by length", "x3, epochs of 200", by_length(3.0, 200)),
    Shape("by length", "x5, epochs of 700", by_length(5.0, 700)),
    Shape("threes", "x40, each 300", in_threes(40.0, 300.0)),
    Shape("threes", "x40, each 40", in_threes(40.0, 40.0)),
    Shape("threes", "x400, each 900", in_threes(400.0, 900.0)),
    Shape("clustered noise", "0.1, long", clustered(0.1, 0.99)),
    Shape("clustered noise", "0.3, short", clustered(0.3, 0.9)),
    Shape("counted errors", "of 32", counted(32, 0.1)),
    Shape("counted errors", "of 8", counted(8, 0.05)),
    Shape("short last batches", "50, 0.8", short_ends(50, 0.8)),
    Shape("short last batches", "390, 1.5", short_ends(390, 1.5)),
    Shape("by time", "0.01 to 1", by_time(0.01, 1.0)),
    Shape("by time", "0.2 to 0.9", by_time(0.2, 0.9)),
    Shape("by heart", "epochs of 100, x3", by_heart(100, 3.0)),
    Shape("by heart", "epochs of 250, x8", by_heart(250, 8.0)),
)


@dataclass
class Tally:
    """What was found in runs of one shape. `pinned`: by how a rise ended."""

    steps: int = 0
    skips: int = 0
    pins: int = 0
    came_down: int = 0
    compared: int = 0
    delays: list[int] = field(default_factory=list)


def generator(*names: str | int) -> Generator:
    return np.random.default_rng([zlib.crc32(one.encode()) if isinstance(one, str) else one for one in names])


def tallied(losses: Array, tally: Tally, fault: int | None = None) -> None:
    """Judge one run, and watch what is found. `fault`: the step of one, to count the delay of the first finding."""
    detector, watch, delay = Detector(), None, -1
    for step, loss in enumerate(losses.tolist()):
        verdict = detector.judge(loss, max(loss, 0.0) ** 0.5, 0.1)
        if verdict is not None:
            tally.skips += verdict.action is Action.SKIP or verdict.finding is Finding.EXPLOSION
            if is_watched(verdict) and watch is None:
                watch, delay = Watch(verdict.baseline, verdict.value), max(delay, step - (fault or 0))
                tally.pins += 1
                continue
        if watch is not None:
            watch, outcome = followed(watch, loss)
            if outcome is not None:
                tally.came_down += outcome is Outcome.CAME_DOWN
                tally.compared += outcome is not Outcome.CAME_DOWN
                watch = None
    tally.steps += len(losses)
    tally.delays.append(delay)


def healthy(shape: Shape, seed: int = SEED, runs: int = RUNS, steps: int = STEPS) -> Tally:
    """Return what is found in a healthy shape."""
    tally = Tally()
    for losses in shape.draw(generator(seed, shape.kind, shape.name), runs, steps):
        tallied(losses, tally)
    return tally


# -- language models ---------------------------------------------------------------------------------------------------

# The first loss, the last one, and the noise of a batch.
MODELS = ((3.9, 2.1, 0.03), (3.9, 1.6, 0.06), (4.6, 2.4, 0.02), (5.5, 2.9, 0.05), (9.0, 3.4, 0.02), (10.8, 2.9, 0.015))
LOSSES = ("weights redrawn", "targets random", "embedding rows zeroed")


def language(first: float, last: float, size: float, how: str, seed: int, runs: int, steps: int = STEPS) -> Tally:
    """Return the delays after which a language model is found that lost its way, at a drawn step after the 2000th."""
    rng, tally = generator(seed, "language", how, int(1000 * first)), Tally()
    for _ in range(runs):
        at = int(rng.integers(2000, 2400))
        steps_of = np.arange(steps)
        course = last + (first - last) * (1.0 + steps_of / 60.0) ** -0.8
        since = np.clip(steps_of - at, 0, None)
        learnt = {
            "weights redrawn": np.exp(-since / 900.0),
            "targets random": 1.0 - np.exp(-since / 40.0),
            "embedding rows zeroed": 0.75 * np.exp(-since / 600.0),
        }[how]
        losses = np.where(since > 0, course + (first - course) * learnt, course) * np.exp(rng.normal(0.0, size, steps))
        tallied(losses, tally, at)
    return tally


def rows() -> Iterator[tuple[Shape, Tally]]:
    for shape in SHAPES:
        yield shape, healthy(shape)
