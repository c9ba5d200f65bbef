"""Detection: what a step costs, and what is found in losses with a fault in them. `make bench` prints it."""

from __future__ import annotations

import platform
import random
import time

import pytest

from tests.core.detection.suite import FAULTS, RUNS, faulty, healthy, judged
from tolariad.core.calc.detection.detector import Detector
from tolariad.core.calc.detection.rules import Action

ROUNDS = 9
STEPS = 20_000


@pytest.mark.bench
def test_detection(seed):
    """Least, median and greatest cost of a step over nine rounds; then a row a fault and a kind of noise."""
    run = list(healthy(random.Random(seed), "heavy", STEPS))
    costs = sorted(cost_us(run) for _ in range(ROUNDS))
    print(f"\ndetection, {platform.machine()}, Python {platform.python_version()}, seed {seed}")
    print(f"a step: least {costs[0]:.2f}, median {costs[ROUNDS // 2]:.2f}, greatest {costs[-1]:.2f} us (limit 1.5)")
    print(f"{'noise':8} {'fault':21} {'within 50':>9} {'within 150':>10} {'median steps':>13}")
    for kind in ("clean", "heavy"):
        for name in FAULTS:
            print(row(seed, kind, name))
        for name in ("x2", "slow 0.5 %"):
            print(row(seed, kind, name, restarted=True))
        skips = [
            verdict.action
            for number in range(RUNS)
            for loss_and_norm in [healthy(random.Random(f"{seed}{number}"), kind, 5000)]
            for verdict in judged(loss_and_norm).values()
        ]
        others = sum(action is not Action.SKIP for action in skips)
        print(f"{kind:8} no fault: {len(skips) / 100:.2f} skips a thousand steps, {others} rollbacks in 100 000")
    # An order of magnitude above the limit: the machine may do other things too.
    assert costs[0] < 20.0


def cost_us(run: list[tuple[float, float]]) -> float:
    judge = Detector().judge
    begun = time.perf_counter()
    for loss, norm in run:
        judge(loss, norm, 0.1)
    return (time.perf_counter() - begun) / len(run) * 1e6


def row(seed: int, kind: str, name: str, *, restarted: bool = False) -> str:
    """`restarted`: a checkpoint is taken and begun from just before the fault, and once more in its midst."""
    delays = []
    for number in range(RUNS):
        begin, run = faulty(random.Random(f"{seed} {kind} {number}"), kind, FAULTS[name])
        found = judged(run, restarts=(begin, begin + 7) if restarted else ())
        delays.append(min((t - begin for t in found if t >= begin), default=10_000))
    median = sorted(delays)[RUNS // 2]
    shown = str(median + 1) if median < 10_000 else "not found"
    within = [sum(delay < limit for delay in delays) for limit in (50, 150)]
    name = f"{name}, restart" if restarted else name
    return f"{kind:8} {name:21} {within[0]:6}/{RUNS} {within[1]:7}/{RUNS} {shown:>13}"
