"""The price of optimizer steps and rebuilds: cautious AdamW beside timm's and torch's, surgery beside its budgets.

Rounds are interleaved, so that what else the machine does falls on each; shown are the best and the median round. All
optimizers of a table work on the same parameters, gradients and moments. Nothing is judged here.
"""

from __future__ import annotations

import copy
import os
import platform
import statistics
import time

import pytest
import torch
from torch import nn

from tests.trainer.optim.oracle import timm_adamw
from tolariad.core.calc.health.budgets import BUDGETS
from tolariad.trainer.lr import GroupConfig, LRPolicy, UnifiedLRController
from tolariad.trainer.optim import CautiousAdamW, OptimizerRebuildCoordinator

THREADS = int(os.environ.get("TOLARIA_BENCH_THREADS", "2"))
ROUNDS = int(os.environ.get("TOLARIA_BENCH_ROUNDS", "7"))
# A decoder's tensors, 12 blocks of 512 wide, and its embedding: 54 M parameters in 148 tensors, most of them small.
DECODER = [(32_000, 512)] + [
    shape
    for _ in range(12)
    for shape in [
        (512,),
        (512,),
        (1536, 512),
        (1536,),
        (512, 512),
        (512,),
        (512,),
        (512,),
        (2048, 512),
        (2048,),
        (512, 2048),
        (512,),
    ]
]
# As many parameters as few tensors of one size.
BLOCKS = [(1000, 5000)] * 10


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    yield
    torch.set_num_threads(before)


def peers():
    """Name: what makes the optimizer."""
    timm = timm_adamw()
    return {
        "torch AdamW fused": lambda ps: torch.optim.AdamW(ps, fused=True),
        "torch AdamW foreach": lambda ps: torch.optim.AdamW(ps, foreach=True),
        "torch AdamW for-loop": lambda ps: torch.optim.AdamW(ps, foreach=False),
        "timm caution foreach": lambda ps: timm(ps, caution=True, foreach=True),
        "timm caution for-loop": lambda ps: timm(ps, caution=True, foreach=False),
        "CautiousAdamW, caution off": lambda ps: CautiousAdamW(ps, caution=False),
        "CautiousAdamW together": lambda ps: CautiousAdamW(ps, foreach=True),
        "CautiousAdamW in chunks": lambda ps: CautiousAdamW(ps, foreach=False),
        "CautiousAdamW (by size)": CautiousAdamW,
    }


def steps_of(shapes):
    """Nanoseconds a parameter of every peer's step, a list of rounds each."""
    parameters = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    moments = {p: (torch.randn_like(p) * 1e-3, torch.rand_like(p) * 1e-4) for p in parameters}
    optimizers = {}
    for name, make in peers().items():
        optimizers[name] = optimizer = make(parameters)
        for p, (m, v) in moments.items():
            optimizer.state[p] = {"step": torch.tensor(100.0), "exp_avg": m, "exp_avg_sq": v}
    took: dict[str, list[float]] = {name: [] for name in optimizers}
    count = sum(p.numel() for p in parameters)
    for one_round in range(ROUNDS + 1):
        for p in parameters:
            p.grad = torch.randn_like(p) * 1e-2 if p.grad is None else p.grad.neg_()
        for name, optimizer in optimizers.items():
            started = time.perf_counter()
            optimizer.step()
            if one_round:
                took[name].append((time.perf_counter() - started) / count * 1e9)
    return count, took


@pytest.mark.bench
@pytest.mark.parametrize("shapes", [BLOCKS, DECODER], ids=["10 tensors", "decoder"])
def test_price_of_a_step(threads, shapes):
    """50 million parameters, two threads."""
    count, took = steps_of(shapes)
    fused = min(took["torch AdamW fused"])
    print(
        f"\n{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, "
        f"{THREADS} threads, load {os.getloadavg()[0]:.1f}: {count / 1e6:.0f} M parameters in {len(shapes)} tensors"
    )
    print(f"{'ns a parameter':32s}{'best':>8s}{'median':>8s}{'x fused':>9s}")
    for name, rounds in took.items():
        print(f"{name:32s}{min(rounds):8.2f}{statistics.median(rounds):8.2f}{min(rounds) / fused:9.1f}")
    assert len(took) == 9


@pytest.mark.bench
def test_price_of_small_tensors(threads):
    """Where going together stops to pay: microseconds a tensor by size, in chunks and together."""
    print(f"\n{'elements':>10s}{'chunks':>10s}{'together':>10s}   us a tensor, best of {ROUNDS * 3}")
    for size in (64, 1024, 4096, 16_384, 65_536, 262_144):
        parameters = [nn.Parameter(torch.randn(size)) for _ in range(20)]
        for p in parameters:
            p.grad = torch.randn_like(p)
        best = []
        for foreach in (False, True):
            optimizer = CautiousAdamW(parameters, foreach=foreach)
            rounds = []
            for _ in range(ROUNDS * 3):
                started = time.perf_counter()
                optimizer.step()
                rounds.append((time.perf_counter() - started) / len(parameters) * 1e6)
            best.append(min(rounds))
        print(f"{size:10d}{best[0]:10.1f}{best[1]:10.1f}")
    assert len(best) == 2


def wide(width=1000):
    """25 million parameters in 25 layers."""
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(25)])


def trained():
    """A model, its optimizer with a state, and the controller of its rates."""
    model = wide()
    optimizer = CautiousAdamW(model.parameters())
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()
    controller = UnifiedLRController({}, steps_per_epoch=100, total_steps=10_000)
    controller.register_optimizer("host", optimizer, GroupConfig("host", LRPolicy.HOST_COSINE, 1e-3))
    return model, optimizer, controller


def milliseconds(call):
    """How long a call took that must come to something."""
    started = time.perf_counter()
    assert call()
    return (time.perf_counter() - started) * 1e3


@pytest.mark.bench
def test_price_of_surgery(threads):
    """25 million parameters; every change is made once a round, on an optimizer of its own."""
    took: dict[str, list[float]] = {}
    for _ in range(3):
        model, optimizer, controller = trained()
        coordinator = OptimizerRebuildCoordinator(optimizer, model, controller)
        model.add_module("more", nn.Linear(64, 64))
        took.setdefault("group_addition", []).append(milliseconds(coordinator.rebuild))
        model[0].weight = nn.Parameter(torch.randn(1064, 1000))
        model[0].bias = nn.Parameter(torch.randn(1064))
        model[1].weight = nn.Parameter(torch.randn(1000, 1064))
        took.setdefault("parameter_addition", []).append(milliseconds(coordinator.rebuild))
        taller = nn.Sequential(*model, nn.Linear(64, 2))
        among = dict(taller.named_parameters())
        took.setdefault("optimizer_rebuild (same parameters)", []).append(
            milliseconds(lambda c=coordinator, a=among: c.rebuild(among=a))
        )
        model, optimizer, controller = trained()
        coordinator = OptimizerRebuildCoordinator(optimizer, model, controller)
        among = dict(copy.deepcopy(model).named_parameters())
        took.setdefault("optimizer_rebuild (copied model)", []).append(
            milliseconds(lambda c=coordinator, a=among: c.rebuild(among=a))
        )
    print(f"\n{'25 M parameters, ms':40s}{'best':>9s}{'worst':>9s}{'budget':>9s}")
    for name, rounds in took.items():
        budget = BUDGETS[name.split(" ")[0]].limit
        print(f"{name:40s}{min(rounds):9.1f}{max(rounds):9.1f}{budget:9.0f}")
    assert len(took) == 4
