"""The price of an empty slot: one call beside nn.Identity's, and a step of the digits network with four of them.

Times are of this thread's own work, so that other load of the machine counts less. The contenders take turns; the best
and the median round are shown. Nothing is judged here.
"""

from __future__ import annotations

import os
import platform
import statistics
import time

import pytest
import torch
from torch import nn
from torch.nn import functional

from tolariad.core.calc.seeds.stages import Stage
from tolariad.trainer.seeds import SeedSlot, attach, find_blueprint

ROUNDS = int(os.environ.get("TOLARIA_BENCH_ROUNDS", "15"))
CALLS, STEPS = 4096, 48
PLACES = ("0", "1", "3", "4")


def called(module):
    """Calls of a module."""
    x = torch.randn(8, 8)

    def calls(count):
        for _ in range(count):
            module(x)

    return calls


def attached(module):
    """The same module with an empty slot."""
    attach(module, "", SeedSlot("a"))
    return module


def trained(stage: Stage | None, how: str):
    """Steps of the digits network, without slots or with four of them in this stage."""
    torch.manual_seed(3)
    layers = [nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 256), nn.ReLU(), nn.Dropout(0.2)]
    model = nn.Sequential(*layers, nn.Linear(256, 10))
    images, labels = torch.randn(64, 64), torch.randint(10, (64,))
    optimizer = torch.optim.AdamW(model.parameters())  # the host's only, in every case
    if how == "modules":
        model = nn.Sequential(*(m for n, one in enumerate(model) for m in _followed(one, n)))
    elif how == "attached":
        for place in PLACES:
            attach(model, place, SeedSlot(place))
    for slot in (one for one in model.modules() if isinstance(one, SeedSlot)):
        if stage is not None:
            slot.plant(find_blueprint("bottleneck").build(torch.zeros(64, 256)))
            slot.enter(stage)

    def steps(count):
        for _ in range(count):
            model.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()

    return steps


def _followed(module, place):
    """A module, and a slot after it if this is the place for one."""
    return (module, SeedSlot(str(place))) if str(place) in PLACES else (module,)


def measured(contenders, count):
    """Microseconds a call, best and median over the rounds, by contender."""
    torch.set_num_threads(1)
    times = {name: [] for name in contenders}
    for run in contenders.values():
        run(count // 8)
    for _ in range(ROUNDS):
        for name, run in contenders.items():
            begun = time.thread_time()
            run(count)
            times[name].append((time.thread_time() - begun) / count * 1e6)
    return {name: (min(each), statistics.median(each)) for name, each in times.items()}


@pytest.mark.bench
def test_price_of_a_slot():
    """Print the two tables."""
    calls = {
        "nn.Identity": called(nn.Identity()),
        "an empty slot": called(SeedSlot("a")),
        "nn.Tanh": called(nn.Tanh()),
        "nn.Tanh, slot attached": called(attached(nn.Tanh())),
    }
    steps = {
        "no slots": trained(None, ""),
        "4 empty modules": trained(None, "modules"),
        "4 empty, attached": trained(None, "attached"),
        "4 in TRAINING": trained(Stage.TRAINING, "attached"),
        "4 in BLENDING": trained(Stage.BLENDING, "attached"),
        "4 FOSSILIZED": trained(Stage.FOSSILIZED, "attached"),
    }
    print(f"\n{platform.machine()}, torch {torch.__version__}, {ROUNDS} rounds in turn; microseconds of one thread")
    for title, table in (("a call", measured(calls, CALLS)), ("a step (digits, batch 64)", measured(steps, STEPS))):
        print(f"{title:28}{'best':>10}{'median':>10}")
        for name, (best, median) in table.items():
            print(f"  {name:26}{best:10.2f}{median:10.2f}")
        assert all(best > 0 for best, _ in table.values())
