"""What exact sums cost beside plain DDP over gloo, side by side in one group of processes.

Two tables. The sum alone, beside what DDP does with gradients that are there: a rank adds those of its leaves in one
tensor, and gloo's all_reduce adds the ranks. And the forward and backward passes of a step, beside DDP's.

EXACT_STEPS (40) is the number of steps of each kind for the small model; the large one makes a quarter.
"""

from __future__ import annotations

import os
import resource
import statistics
import time
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tests.bench.machine import machine
from tests.trainer.ranks.groups import results
from tolariad.trainer.ranks.exact import ExactSum, block

STEPS = int(os.environ.get("EXACT_STEPS", "40"))
WARM = 4
# Two equal rows of one run differ by as much.
NOISE = 0.05
BATCH = 64
# Widths of four layers, with about a million and ten million parameters.
SIZES = {"1 M": (500, STEPS), "10 M": (1580, max(6, STEPS // 4))}


def layers(width):
    torch.manual_seed(0)
    return nn.Sequential(*(one for _ in range(4) for one in (nn.Linear(width, width), nn.ReLU())))


def processor_s():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measured(kinds, steps):
    """Return wall time and processor time of each step by kind, the kinds in turn. `kinds`: functions of the step."""
    found = {name: ([], []) for name in kinds}
    for step in range(1, steps + WARM + 1):
        for name, make in kinds.items():
            distributed.barrier()
            used, begin = processor_s(), time.perf_counter()
            make(step)
            wall, used = time.perf_counter() - begin, processor_s() - used
            if step > WARM:
                found[name][0].append(wall)
                found[name][1].append(used)
    return {
        name: (sorted(walls)[len(walls) // 20], statistics.median(walls), statistics.fmean(used))
        for name, (walls, used) in found.items()
    }


def sums(leaves, width, steps, rank, ranks, mapping):
    """The sum alone: gradients are there already."""
    model = layers(width)
    parameters = list(model.parameters())
    flat, other = (torch.randn(sum(one.numel() for one in parameters)) for _ in range(2))
    given = [[torch.randn_like(one) for one in parameters] for _ in block(leaves, ranks, rank)]
    exact = ExactSum(model, rank=rank, ranks=ranks, leaves=leaves, mapping=mapping, rng_seed=0)

    def summed(step):
        with exact.step(step) as mine:
            for leaf, gradients in zip(mine, given, strict=True):
                with exact.leaf(leaf):
                    for one, gradient in zip(parameters, gradients, strict=True):
                        one.grad = gradient
        for one in parameters:
            one.grad = None

    def reduced(_):
        for _ in given[1:]:
            flat.add_(other)
        distributed.all_reduce(flat)

    return measured({"all_reduce": reduced, "exact": summed}, steps)


def passes(leaves, width, steps, second, rank, ranks, mapping):
    """Forward and backward passes of a step; gradients are dropped after each. `second`: another mapping."""
    x = torch.randn(BATCH, width)
    plain, ours, alone = DistributedDataParallel(layers(width)), DistributedDataParallel(layers(width)), layers(width)

    def by_ddp(_):
        mine = block(leaves, ranks, rank)
        for leaf in mine:
            with nullcontext() if leaf == mine[-1] else plain.no_sync():
                (plain(x).square().mean() / len(mine)).backward()
        plain.zero_grad()

    def by_exact(model, exact, step):
        with exact.step(step) as mine:
            for leaf in mine:
                with exact.leaf(leaf):
                    (model(x).square().mean() / leaves).backward()
        model.zero_grad()

    def summed(model, file):
        exact = ExactSum(model, rank=rank, ranks=ranks, leaves=leaves, mapping=file, rng_seed=0)
        return partial(by_exact, model, exact)

    return measured({"DDP": by_ddp, "exact in DDP": summed(ours, mapping), "exact alone": summed(alone, second)}, steps)


@pytest.mark.bench
def test_exact_sums_cost_no_more_than_plain_ddp(tmp_path):
    """In a step, by the clock: the sum takes the place of DDP's ring, and its bytes are not sent."""
    print(f"\n{machine()}; each rank computes with {torch.get_num_threads()} thread; ms, and times the first row")
    over = []
    for ranks in (2, 4):
        for name, (width, steps) in SIZES.items():
            for times in (1, 2):
                leaves = times * ranks
                second = os.memfd_create("second")
                jobs = {
                    "the sum": partial(sums, leaves, width, steps),
                    "a step": partial(passes, leaves, width, steps, second),
                }
                for what, job in jobs.items():
                    found = results(tmp_path / f"{ranks}{width}{times}{what}", ranks, job)
                    where = f"{what}, {ranks} ranks, V = {leaves}, {name}"
                    over += show(where, found)
                os.close(second)
    assert not over, "\n".join(over)


def show(where, found):
    """Print wall times of rank 0 and mean processor time of all. Return the steps that cost more than DDP's."""
    over, base = [], None
    for kind in found[0]:
        low, median, _ = found[0][kind]
        used = statistics.fmean(one[kind][2] for one in found)
        base = base or (low, median, used)
        ratios = [one / first for one, first in zip((low, median, used), base, strict=True)]
        texts = (f"{1e3 * one:8.2f} ({ratio:4.2f})" for one, ratio in zip((low, median, used), ratios, strict=True))
        print(f"{where:34s} {kind:14s} p5 {next(texts)}  median {next(texts)}  processor {next(texts)}")
        if where.startswith("a step") and min(ratios[:2]) > 1.0 + NOISE:
            over.append(f"{where}, {kind}: {ratios[0]:.2f} times DDP's fifth percentile, {ratios[1]:.2f} its median")
    return over
