"""The times of a rank: its own work and its wait are told apart, also within a backward pass."""

from __future__ import annotations

import os

import torch

from tolariad.channel.group_page import GroupPage
from tolariad.core import messages as m
from tolariad.trainer.ranks.times import RankClock, samples_of
from tolariad.trainer.torch_private.choice import ONLY_PUBLIC
from tolariad.trainer.torch_private.graphs import at_end_of_backward

MS = 10**6


class Hands:
    """A clock whose time a test sets."""

    def __init__(self):
        self.ns = 1

    def __call__(self):
        return self.ns

    def after(self, ms):
        self.ns += ms * MS


def clocks(ranks=2):
    """Return the clocks of all ranks over one page, and the hands that they share."""
    hands, page = Hands(), GroupPage.create(ranks)
    pages = [page, *(GroupPage.attach(os.dup(page.descriptor), rank) for rank in range(1, ranks))]
    return [RankClock(one, hands) for one in pages], hands


def test_a_step_is_compute_until_its_numbers_and_then_wait():
    """Rank 1 takes 30 ms, rank 0 10: rank 0 waits 20 ms, in two thirds of each step. Reports are of new steps only."""
    (zero, one), hands = clocks()
    for step in range(1, 5):
        zero.left(), one.left()
        hands.after(10)
        since = zero.computed()
        hands.after(20)
        late = one.computed()
        zero.met(since, step, 8), one.met(late, step, 8)
        hands.after(7)  # the wait for the recorder counts as neither
    found = zero.taken()

    assert [(r.rank, r.pid, r.steps, r.batch) for r in found] == [(0, os.getpid(), 4, 8), (1, os.getpid(), 4, 8)]
    assert [(round(r.compute_s, 6), round(r.wait_s, 6)) for r in found] == [(0.04, 0.08), (0.12, 0.0)]
    slow = m.slowest_rank(found)
    assert (slow.rank, round(slow.share, 6)) == (1, 0.666667)
    assert zero.taken() == ()


def test_the_wait_at_the_end_of_a_backward_pass_is_no_work():
    """A callback that is queued within the pass, as DDP's, comes after the clock's: its 50 ms are wait."""
    (zero, _), hands = clocks()
    weight = torch.ones(3, requires_grad=True)
    loss = (weight * weight).sum()
    zero.left()
    hands.after(5)
    weight.register_hook(lambda _: at_end_of_backward(lambda: hands.after(50)))

    zero.of_backward(loss, loss.backward)
    zero.met(zero.computed(), 1, 1)
    (found, _) = zero.taken()

    assert weight.grad is not None
    # Without torch's private name all of the pass counts as work.
    assert round(found.wait_s, 6) == (0.0 if ONLY_PUBLIC else 0.05)
    assert round(found.compute_s, 6) == (0.055 if ONLY_PUBLIC else 0.005)


def test_a_step_after_something_else_than_a_step_is_not_timed():
    """After a re-run, or a skip, nothing says when the step began; later only about one step in sixteen is timed."""
    (zero, _), hands = clocks()
    zero.over(3)
    hands.after(500)
    zero.met(zero.computed(), 4, 1)
    assert zero.taken() == ()
    timed = 0
    for step in range(50, 1050):
        zero.left()
        timed += zero.is_on
        zero.over(step)
    assert 50 < timed < 75


def test_the_samples_of_a_batch_are_the_length_of_its_first_tensor():
    """In tuples, lists and dicts, nested; a batch without a tensor has no known number."""
    rows = torch.zeros(7, 2)
    for batch in (rows, (rows, 1), [rows], {"x": rows}, ({"x": [rows]},)):
        assert samples_of(batch) == 7
    for batch in ((), {}, "text", 3, torch.zeros(()), ["text"]):
        assert samples_of(batch) == 0
