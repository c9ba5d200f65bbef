"""What a step costs in a run of two ranks: exact sums beside DDP over gloo, in runs that take turns.

Everything of a step is in it: reading a batch, the passes, the sum, the exchange of numbers, the gate, the update. The
sum by itself, with more ranks and sizes, is in test_exact_price.
"""

from __future__ import annotations

import os
import statistics

import pytest

from tests.bench.machine import machine
from tests.bench.test_ranks_goodput import SETS, median_step_s, steps_in
from tests.daemon.harness import DaemonProcess

pytestmark = pytest.mark.bench
STEPS, ROUNDS = int(os.environ.get("EXACT_STEPS", "200")), 3
RANKS = 2
# Two runs of one kind differ by as much on a machine that others use.
NOISE = 0.10


def step_ms(folder, *sets):
    """Train so many steps. Return the median time of one, in milliseconds."""
    folder.mkdir()
    task = "tests.bench.goodput_task:GoodputTask"
    own = (*SETS, "trainer.spare=off", f"stop.steps={STEPS}", "checkpoint.interval_steps=1000000", *sets)
    environ = {"GOODPUT_FOLDER": str(folder)}
    daemon = DaemonProcess(folder / "run", task=task, epochs=1, sets=list(own), trainer_command=None, environ=environ)
    assert daemon.wait() == 0, daemon.stderr
    return 1e3 * median_step_s(steps_in(folder))


def test_a_step_with_exact_sums_costs_no_more_than_one_with_ddp(tmp_path):
    """As many leaves as ranks, and twice as many, beside DDP with as many batches a step."""
    print(f"\n{machine()}; {RANKS} ranks, {STEPS} steps a run, {ROUNDS} runs each; ms a step, and times DDP's")
    over = []
    for times in (1, 2):
        leaves = times * RANKS
        ways = {
            "DDP": (f"accumulate={times}",),
            "exact": ("parallel.exact=true", f"parallel.leaves={leaves}"),
        }
        found = {way: [] for way in ways}
        for turn in range(ROUNDS):
            for way, sets in ways.items():
                found[way].append(step_ms(tmp_path / f"{way}{times}{turn}", *sets))
        ratio = statistics.median(one / other for one, other in zip(found["exact"], found["DDP"], strict=True))
        texts = {way: " ".join(f"{one:.1f}" for one in each) for way, each in found.items()}
        print(f"V = {leaves}: DDP {texts['DDP']}; exact {texts['exact']}; {ratio:.2f}")
        if ratio > 1 + NOISE:
            over.append(f"V = {leaves}: {ratio:.2f} times DDP's")
    assert not over, "\n".join(over)
