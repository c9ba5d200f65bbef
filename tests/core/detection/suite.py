"""Losses with a fault, drawn from a seed: every detector is measured against them.

The loss is 0.5 + 2 exp(-t / 500), times the exponential of noise. `clean` noise is normal with a spread of 0.05;
`heavy` noise is 0.05 times Student's t with four degrees of freedom. Gradient norms have noise of their own, of 0.2,
and no fault. The fault begins at a step drawn from 1 200 to 1 500. `judged` can take the detector through a checkpoint
before any step: its verdicts must be those of a detector that was never restored.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Container, Iterable, Iterator

import msgspec

from tolariad.core.calc.detection.detector import Detector, DetectorState
from tolariad.core.calc.detection.rules import Verdict

STEPS = 2000
RUNS = 20

Fault = Callable[[int], float]

# By name: the factor on the loss, `t` steps after the fault began (0 is the first faulty step).
FAULTS: dict[str, Fault] = {
    "x1.3": lambda _: 1.3,
    "x2": lambda _: 2.0,
    "x5": lambda _: 5.0,
    "x10": lambda _: 10.0,
    "x20": lambda _: 20.0,
    "shelf +10 %": lambda _: 1.1,
    "one step x3": lambda t: 3.0 if t == 0 else 1.0,
    "one step x10": lambda t: 10.0 if t == 0 else 1.0,
    "NaN": lambda t: math.nan if t == 0 else 1.0,
    "slow 0.5 %": lambda t: 1.005**t,
}


def noise(draw: random.Random, kind: str) -> float:
    """One draw of a loss's noise."""
    normal = draw.gauss(0.0, 1.0)
    if kind == "clean":
        return 0.05 * normal
    chi_square = sum(draw.gauss(0.0, 1.0) ** 2 for _ in range(4))
    return 0.05 * normal / math.sqrt(chi_square / 4.0)


def healthy(draw: random.Random, kind: str, steps: int = STEPS) -> Iterator[tuple[float, float]]:
    """Yield loss and gradient norm of a run without a fault."""
    for t in range(steps):
        yield (0.5 + 2.0 * math.exp(-t / 500.0)) * math.exp(noise(draw, kind)), math.exp(draw.gauss(0.0, 0.2))


def restarted(detector: Detector) -> Detector:
    """The detector as a checkpoint brings it back: its state, encoded and read."""
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(detector.state()), type=DetectorState)
    return Detector(state=state)


def judged(
    run: Iterable[tuple[float, float]], detector: Detector | None = None, *, restarts: Container[int] = ()
) -> dict[int, Verdict]:
    """The verdicts on a run, by step; before each of `restarts` the detector goes through a checkpoint."""
    detector, found = detector or Detector(), dict[int, Verdict]()
    for t, (loss, norm) in enumerate(run):
        if t in restarts:
            detector = restarted(detector)
        verdict = detector.judge(loss, norm)
        if verdict is not None:
            found[t] = verdict
    return found


def faulty(draw: random.Random, kind: str, fault: Fault) -> tuple[int, list[tuple[float, float]]]:
    """Return the step at which the fault begins, and the run."""
    begin = draw.randint(1200, 1500)
    run = [
        (loss * fault(t - begin) if t >= begin else loss, norm) for t, (loss, norm) in enumerate(healthy(draw, kind))
    ]
    return begin, run
