"""The sum of all copies: each element is added in the order of the leaves, whichever rank adds it."""

from __future__ import annotations

import random

import pytest
import torch

from tolariad.trainer.ranks.exact import order
from tolariad.trainer.ranks.exact.fold import add_up
from tolariad.trainer.ranks.exact.layout import Layout

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64)


def drawn_tensor(draw):
    shape = draw.choice(((), (0,), (3,), (5, 7), (300, 301), (2, 3, 4, 5)))
    tensor = torch.empty(shape, dtype=draw.choice(DTYPES))
    return tensor.mT if len(shape) == 2 and draw.random() < 0.5 else tensor


def filled(like, drawn):
    """Return random values of very different sizes, and zeros of both signs."""
    parts = torch.randn((*like.shape, 2), generator=drawn, dtype=torch.float64)
    values = parts * 10 ** (4 * torch.rand(parts.shape, generator=drawn, dtype=torch.float64))
    values = torch.where(torch.rand(parts.shape, generator=drawn) < 0.2, parts.sign() * 0.0, values)
    return (torch.view_as_complex(values) if like.is_complex() else values[..., 0]).to(like.dtype)


def chain(gradients):
    """Return what one process accumulates from these, of which some are None."""
    total = None
    for one in gradients:
        if one is not None:
            total = one.clone() if total is None else total.add_(one)
    return total


def bytes_of(tensor):
    return tensor.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("number", range(25))
def test_shares_of_all_ranks_together_are_the_chain(number, seed):
    """Random tensors, dtypes, strides and numbers of ranks and leaves; some leaves have no gradient of some tensors."""
    draw = random.Random(seed + number)
    ranks = draw.randint(1, 6)
    leaves = draw.randint(ranks, 9)
    tensors = [(str(at), drawn_tensor(draw)) for at in range(draw.randint(1, 8))]
    layout = Layout(tensors)
    drawn = torch.Generator().manual_seed(draw.randrange(1 << 30))
    missing = draw.choice((0.0, 0.0, 0.3))
    given = [[filled(one, drawn) if draw.random() >= missing else None for _, one in tensors] for _ in range(leaves)]
    slots = order.slots(leaves, ranks)
    gradients = torch.zeros(slots, layout.size, dtype=torch.uint8)
    present = torch.zeros(slots, len(tensors), dtype=torch.uint8)
    for slot in range(slots):
        mine = [one for leaf, one in enumerate(given) if order.slot_of(leaf, leaves, ranks) == slot]
        for at, (view, parts) in enumerate(zip(layout.views(gradients[slot]), zip(*mine, strict=True), strict=True)):
            if (found := chain(parts)) is not None:
                view.copy_(found)
                present[slot, at] = 1

    for rank in draw.sample(range(ranks), ranks):
        add_up(layout, layout.pieces(ranks, rank), present, gradients)

    for view, parts in zip(layout.views(gradients[0]), zip(*given, strict=True), strict=True):
        if (expected := chain(parts)) is not None:
            assert bytes_of(view) == bytes_of(expected)


@pytest.mark.parametrize("ranks", range(1, 8))
def test_blocks_and_shares_cover_everything_once(ranks):
    """For any number of leaves and elements; the first block has a copy in common, every other leaf one of its own."""
    for leaves in range(ranks, 20):
        blocks = [order.block(leaves, ranks, rank) for rank in range(ranks)]
        assert [leaf for one in blocks for leaf in one] == list(range(leaves))
        assert all(blocks)
        used = [order.slot_of(leaf, leaves, ranks) for leaf in range(leaves)]
        first = len(blocks[0])
        assert used == [0] * first + list(range(1, leaves - first + 1))
        assert order.slots(leaves, ranks) == used[-1] + 1
    for length in (0, 1, 63, 64, 65, 1000):
        shares = [order.share(length, ranks, rank, 64) for rank in range(ranks)]
        assert [at for begin, end in shares for at in range(begin, end)] == list(range(length))
