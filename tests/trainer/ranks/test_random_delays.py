"""Ranks that are late at random: no rank reads half a sum, or overwrites what another one still reads."""

from __future__ import annotations

import random
import time
from functools import partial

import pytest
import torch
from torch import nn

from tests.trainer.ranks.groups import results
from tests.trainer.ranks.test_fold import bytes_of, chain
from tolariad.trainer.ranks.exact import ExactSum, sums

SHAPES = ((130, 70), (3,), ())
STEPS = 25


def late(function, draw):
    """Return a function that does the same, at random before or after a pause."""

    def slow(*arguments):
        time.sleep(draw.choice((0.0, 0.0, 0.0, 3e-4, 3e-3)))
        found = function(*arguments)
        time.sleep(draw.choice((0.0, 0.0, 0.0, 3e-4, 3e-3)))
        return found

    return slow


def gradient(seed, step, leaf, number):
    """Return what a leaf finds for a parameter, or None."""
    drawn = torch.Generator().manual_seed(seed % 10_000 + 10_000 * step + 100 * leaf + number)
    found = torch.randn(SHAPES[number], generator=drawn)
    return found if torch.rand((), generator=drawn) < 0.8 else None


def wrong_steps(seed, leaves, rank, ranks, mapping):
    """Make steps of random gradients. Return the steps in which this rank has not got their chain, or the numbers."""
    draw = random.Random(seed + rank)
    sums.add_up, sums.lists = late(sums.add_up, draw), _Lists(draw)
    model = nn.ParameterList(nn.Parameter(torch.zeros(one)) for one in SHAPES)
    exact = ExactSum(model, rank=rank, ranks=ranks, leaves=leaves, mapping=mapping, rng_seed=seed)
    counts = {step: 1 + (seed + step) % leaves for step in range(1, STEPS + 1)}
    # Before and after all steps, so that nothing else takes time between them.
    given = {
        (step, leaf): [gradient(seed, step, leaf, number) for number in range(len(SHAPES))]
        for step, count in counts.items()
        for leaf in range(count)
    }
    found = {}
    for step, count in counts.items():
        with exact.step(step, count) as mine:
            for leaf in mine:
                with exact.leaf(leaf):
                    exact.note(leaf, float(step * 100 + leaf))
                    for one, value in zip(model, given[step, leaf], strict=True):
                        one.grad = None if value is None else value.clone()
        found[step] = [one.grad for one in model], exact.numbers
        for one in model:
            one.grad = None
    wrong = []
    for step, count in counts.items():
        gradients, numbers = found[step]
        for number, one in enumerate(gradients):
            expected = chain([given[step, leaf][number] for leaf in range(count)])
            if _bits(one) != _bits(expected) or numbers != [[float(step * 100 + leaf)] for leaf in range(count)]:
                wrong.append((step, number))
    return wrong


def _bits(tensor):
    return None if tensor is None else bytes_of(tensor)


class _Lists:
    def __init__(self, draw):
        self.copy_, self.add_ = late(sums.lists.copy_, draw), late(sums.lists.add_, draw)


MORE = [pytest.param(ranks, leaves, marks=pytest.mark.torture) for ranks, leaves in ((3, 7), (5, 9))]


@pytest.mark.parametrize(("ranks", "leaves"), [(2, 2), (3, 4), *MORE])
def test_every_rank_has_the_chain_in_every_step(ranks, leaves, seed, tmp_path):
    """Pauses before and after each copy and each sum; steps of any number of leaves, some without gradients."""
    assert results(tmp_path / "group", ranks, partial(wrong_steps, seed, leaves)) == [[]] * ranks
