"""The price of the rate controller in a step: comparing before the update, advancing after it; beside torch's
scheduler.

Times are of this thread's own work, so that other load of the machine counts less. The best and the median round are
shown. The tables of rates are drawn 1 024 steps at a time, which is included. Nothing is judged here.
"""

from __future__ import annotations

import os
import platform
import statistics
import time

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from tests.core.rated import rates_at
from tolariad.trainer.lr import GroupConfig, LRPolicy, UnifiedLRController
from tolariad.trainer.lr.integrity import _before_any_step

ROUNDS = int(os.environ.get("TOLARIA_BENCH_ROUNDS", "9"))
STEPS = 4096
MIXED = [policy for policy in LRPolicy if policy is not LRPolicy.FROZEN] + [LRPolicy.HOST_COSINE]


def optimizer_of(groups, each):
    """SGD over `groups` groups of `each` small parameters, every one with a rate of its own."""
    return torch.optim.SGD(
        [{"params": [nn.Parameter(torch.zeros(2)) for _ in range(each)], "lr": 0.1 / (n + 1)} for n in range(groups)],
        lr=0.1,
    )


def guarded(groups, each, policies):
    """One step's share of the controller: both hooks, then the advance."""
    optimizer = optimizer_of(groups, each)
    controller = UnifiedLRController({}, steps_per_epoch=1000, total_steps=10**7)
    configs = [GroupConfig(f"g{n}", policies[n % len(policies)], 0.1 / (n + 1), warmup_epochs=1) for n in range(groups)]
    controller.register_optimizer("host", optimizer, configs)
    (guard,) = (held.guard for held in controller._every)
    arguments, keywords = (optimizer,), {}
    before_step, advance = guard._before_step, controller.advance

    def steps(count):
        for _ in range(count):
            _before_any_step(optimizer, arguments, keywords)
            before_step(optimizer, arguments, keywords)
            advance(1)

    return steps


def closed_form(groups):
    """The same rates drawn one step at a time, and nothing else."""
    controller = UnifiedLRController({}, steps_per_epoch=1000, total_steps=10**7)
    config = GroupConfig("g", LRPolicy.HOST_COSINE, 0.1, warmup_epochs=1)
    controller.register_optimizer("host", optimizer_of(groups, 1), config)
    held = controller.groups
    return repeated(lambda: rates_at(held, 5000))


def torchs(groups, each):
    """torch's cosine, which neither compares nor puts anything back."""
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer_of(groups, each), T_max=10**7)
    return repeated(scheduler.step)


def repeated(step):
    """Call `step` so often."""

    def steps(count):
        for _ in range(count):
            step()

    return steps


@pytest.mark.bench
@pytest.mark.filterwarnings("ignore:Detected call of")
def test_what_a_step_pays_for_its_rates():
    """Microseconds a step; the aim is 2 for 8 groups, the source's budgets are 2 000 and 5 000."""
    rows = {
        "8 groups of 2 parameters, cosine": guarded(8, 2, [LRPolicy.HOST_COSINE]),
        "8 groups of 2 parameters, a policy each": guarded(8, 2, MIXED),
        "8 groups of 20 parameters, cosine": guarded(8, 20, [LRPolicy.HOST_COSINE]),
        "1 group of 20 parameters, cosine": guarded(1, 20, [LRPolicy.HOST_COSINE]),
        "64 groups of 2 parameters, cosine": guarded(64, 2, [LRPolicy.HOST_COSINE]),
        "8 groups drawn step by step, rates alone": closed_form(8),
        "8 groups, torch's CosineAnnealingLR": torchs(8, 2),
    }
    times = {name: [] for name in rows}
    for _ in range(ROUNDS):
        for name, steps in rows.items():
            count = STEPS if "step by step" not in name and "torch" not in name else STEPS // 16
            begun = time.thread_time()
            steps(count)
            times[name].append((time.thread_time() - begun) / count * 1e6)
    print(
        f"\n{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}"
    )
    print(f"{'µs a step':44}{'best':>8}{'median':>8}")
    for name, found in times.items():
        print(f"{name:44}{min(found):8.2f}{statistics.median(found):8.2f}")
    assert all(len(found) == ROUNDS for found in times.values())
