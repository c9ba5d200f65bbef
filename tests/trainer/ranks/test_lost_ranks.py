"""A rank that ends, is stopped or gives up in the middle of a sum is named by the others, which do not hang."""

from __future__ import annotations

import os
import signal
import time
from functools import partial

import pytest

from tests.trainer.ranks.cases import SEED, Case
from tests.trainer.ranks.groups import Group
from tolariad.trainer.ranks.exact import ExactSum, RankLost, fold, meeting, sums

LOST = 1


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def stopped():
    os.kill(os.getpid(), signal.SIGSTOP)


def raising():
    raise OSError("the disk of this rank is full")


def named(event, moment, rank, ranks, mapping):
    """Train; at step 2 the rank `LOST` meets with `event`. Return what the others raise: the rank, and why."""
    case = Case("mlp", leaves=4, clip=None)
    model = case.built()
    exact = ExactSum(model, rank=rank, ranks=ranks, leaves=4, mapping=mapping, rng_seed=SEED)
    if rank == LOST and moment == "in the sum":
        # After its first piece: the others wait for the rest.
        def add_up(layout, pieces, *rest):
            fold.add_up(layout, pieces[:1], *rest)
            if at == 2:
                event()

        sums.add_up = add_up
    at = 0
    try:
        for step in (1, 2, 3):
            at = step
            with exact.step(step) as mine:
                for leaf in mine:
                    with exact.leaf(leaf):
                        case.loss(model, step, leaf).backward()
                        if (rank, step, moment) == (LOST, 2, "before it"):
                            event()
            model.zero_grad()
            if (rank, step, moment) == (LOST, 2, "after it"):
                event()
    except RankLost as error:
        return error.rank, error.why, str(error), at
    return None


@pytest.mark.sample(4)
@pytest.mark.parametrize("moment", ["before it", "in the sum", "after it"])
@pytest.mark.parametrize(
    ("event", "why"),
    [
        (killed, "has ended"),
        (stopped, "is stopped by a signal"),
        (raising, "gave up"),
    ],
)
def test_the_others_name_the_lost_rank_and_end(event, why, moment, tmp_path, monkeypatch):
    """Each other rank raises RankLost with its number and what is seen of it; none makes the update of a half sum."""
    monkeypatch.setattr(meeting, "STOPPED_S", 0.3)
    group = Group(tmp_path / "group", 3, partial(named, event, moment))
    try:
        for rank in (0, 2):
            lost, seen, text, step = group.wait_for(rank)
            assert (lost, step) == (LOST, 3 if moment == "after it" else 2)
            assert (why if (event, moment) != (raising, "after it") else "has ended") in seen
            assert text.startswith(f"Rank {LOST} ")
    finally:
        group.end()


def test_a_wait_may_be_ended_from_outside(tmp_path):
    """What `waiting` raises ends it: a rank that waits obeys the order to exit."""

    def work(rank, ranks, mapping):
        orders = []

        def waiting():
            if orders:
                raise KeyboardInterrupt

        case = Case("mlp", leaves=2)
        model = case.built()
        exact = ExactSum(model, rank=rank, ranks=ranks, leaves=2, mapping=mapping, rng_seed=SEED, waiting=waiting)
        if rank == 0:
            time.sleep(3600)
        try:
            with exact.step(1), exact.leaf(1):
                case.loss(model, 1, 1).backward()
                orders.append("exit")
        except KeyboardInterrupt:
            return "told"
        return ""

    group = Group(tmp_path / "group", 2, work)
    try:
        assert group.wait_for(1) == "told"
    finally:
        group.end()
