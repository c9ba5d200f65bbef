"""Detection: what a step costs, and what is found in losses with a fault in them. `make bench` prints it."""

from __future__ import annotations

import platform
import random
import time

import pytest

from tests.core.detection.suite import FAULTS, RUNS, faulty, healthy
from tolariad.core.detection import Action, Detector

ROUNDS = 9
STEPS = 20_000


@pytest.mark.bench
def test_detection(seed):
    """Least, median and greatest cost of a step over nine rounds; then a row a fault and a kind of noise."""
    run = list(healthy(random.Random(seed), "heavy", STEPS))
    costs = sorted(cost_us(run) for _ in range(ROUNDS))
    print(f"\ndetection, {platform.machine()}, Python {platform.python_version()}, seed {seed}")
    print(f"a step: least {costs[0]:.2f}, median {costs[ROUNDS // 2]:.2f}, greatest {costs[-1]:.2f} us (limit 2)")
    print(f"{'noise':8} {'fault':14} {'within 50':>9} {'within 150':>10} {'median steps':>13}")
    for kind in ("clean", "heavy"):
        for name in FAULTS:
            print(row(seed, kind, name))
        skips = [
            verdict.action
            for number in range(RUNS)
            for loss_and_norm in [healthy(random.Random(f"{seed}{number}"), kind, 5000)]
            for verdict in judged(loss_and_norm).values()
        ]
        others = sum(action is not Action.SKIP for action in skips)
        print(f"{kind:8} no fault: {len(skips) / 100:.2f} skips a thousand steps, {others} rollbacks in 100 000")
    assert len(costs) == ROUNDS


def cost_us(run: list[tuple[float, float]]) -> float:
    judge = Detector().judge
    begun = time.perf_counter()
    for loss, norm in run:
        judge(loss, norm)
    return (time.perf_counter() - begun) / len(run) * 1e6


def judged(run):
    judge = Detector().judge
    return {t: verdict for t, (loss, norm) in enumerate(run) if (verdict := judge(loss, norm)) is not None}


def row(seed: int, kind: str, name: str) -> str:
    delays = []
    for number in range(RUNS):
        begin, run = faulty(random.Random(f"{seed} {kind} {number}"), kind, FAULTS[name])
        delays.append(min((t - begin for t in judged(run) if t >= begin), default=10_000))
    median = sorted(delays)[RUNS // 2]
    shown = str(median + 1) if median < 10_000 else "not found"
    within = [sum(delay < limit for delay in delays) for limit in (50, 150)]
    return f"{kind:8} {name:14} {within[0]:6}/{RUNS} {within[1]:7}/{RUNS} {shown:>13}"
