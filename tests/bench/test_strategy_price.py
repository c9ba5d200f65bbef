"""The time of an answer: the default policy with 100 seeds, and a strategy in a process of its own.

The budget of the sources is 12 ms for an answer. The times of the policy are of this thread's own work, so that other
load of the machine counts less. Those of the process are by the clock, with its two changes of process.
"""

from __future__ import annotations

import os
import time

import pytest

from tests.strategy.packets import packet, seed
from tests.strategy.process.strategists import PATIENT, asked, runs
from tolariad.core.calc.health.budgets import BUDGETS
from tolariad.leyline import SeedLifecycleStage
from tolariad.strategy.process.child import StrategySetup
from tolariad.strategy.process.strategist import Strategist

QUESTIONS = int(os.environ.get("TOLARIA_BENCH_QUESTIONS", "400"))


def packets(seeds: int):
    """Epochs of a run whose seeds are in all stages, on a plateau."""
    slots = [
        seed(f"slot{n:03d}", n % 12, depth=n, alpha=0.5, dropped=0.0, drift=0.01, latency_ms=0.1, steps_in_stage=9.0)
        for n in range(seeds)
    ]
    return [packet(epoch, 1.0, slots, gradient_norm=1.0) for epoch in range(1, QUESTIONS + 1)]


def shown(name: str, times: list[float]) -> float:
    """Print the distribution in milliseconds, and return its p95."""
    ordered = sorted(1e3 * one for one in times)
    p50, p95, p99 = (ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.95, 0.99))
    print(f"\n{name:<44} p50 {p50:7.3f} ms  p95 {p95:7.3f}  p99 {p99:7.3f}  max {ordered[-1]:7.3f}")
    return p95


@pytest.mark.bench
@pytest.mark.parametrize("seeds", [0, 4, 100])
async def test_the_default_policy_answers_within_its_budget(seeds):
    """The whole question: from the packet to checked commands and the bytes of the state."""
    assert {one % 12 for one in range(100)} >= set(SeedLifecycleStage.values())
    strategist = Strategist(StrategySetup(strategy="default", environment={}))
    times = []
    for one in packets(seeds):
        began = time.thread_time()
        answer = await strategist.ask(one, one.current_epoch)
        times.append(time.thread_time() - began)
        assert answer.fallback == ""
    assert shown(f"default policy, {seeds} seeds", times) < BUDGETS["strategy_answer"].limit


@pytest.mark.bench
@pytest.mark.parametrize("seeds", [4, 100])
async def test_a_process_answers_within_the_budget(seeds):
    """Packet, socket, the user's code, socket, checks."""
    async with asked("Honest", PATIENT) as strategist:
        await runs(strategist)
        times = []
        for one in packets(seeds):
            answer = await strategist.ask(one, one.current_epoch)
            times.append(answer.seconds)
            assert answer.fallback == ""
    assert shown(f"a process of its own, {seeds} seeds", times) < BUDGETS["strategy_answer"].limit


@pytest.mark.bench
async def test_the_start_of_a_process_is_printed():
    """From the order to the first answer: Python and protobuf, without torch."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        async with asked("Honest", PATIENT) as strategist:
            assert (await strategist.ask(packet(1), 1)).fallback == ""
            times.append(time.perf_counter() - began)
    assert shown("start of a process, and its first answer", times) < 30_000
