"""Meetings: who is named, and a protocol that holds for any delays."""

from __future__ import annotations

import os
import random
import threading
import time

import pytest
import torch

from tolariad.trainer.ranks.exact.meeting import LINE_BYTES, Meeting, RankLost


def meetings(ranks, limit_s=60.0):
    lines = torch.zeros(ranks * LINE_BYTES, dtype=torch.uint8)
    return [Meeting(lines, rank=rank, ranks=ranks, limit_s=limit_s, waiting=None) for rank in range(ranks)]


def test_the_rank_is_named_that_another_one_has_found_lost():
    """A rank that ends because of a lost one is not taken for the cause."""
    first, second, third = meetings(3)
    second.arrive()
    first.arrive()
    first.give_up(lost=1)

    third.arrive()
    third.wait()
    third.arrive()
    with pytest.raises(RankLost, match=r"^Rank 1 is lost, as rank 0 has found, so") as found:
        third.wait()

    assert found.value.rank == 1


def test_a_rank_that_runs_but_does_not_come_is_named_after_the_limit():
    """Whatever it does: a deadlock, an endless loop, or a file that never answers."""
    first, _ = meetings(2, limit_s=0.3)
    first.begin(7, 2)

    with pytest.raises(RankLost, match=r"^Rank 1 has not come for [0-9.]+ s, .* gradients of step 7 "):
        first.meet()


def test_a_rank_that_came_before_it_ended_is_not_missed():
    """What it wrote is whole: the sum it came for can be made, and it is missed at the next one."""
    first, second = meetings(2)
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    second._words[1 * LINE_BYTES // 8 + 1] = pid
    second.arrive()

    first.meet()
    with pytest.raises(RankLost, match=rf"^Rank 1 \(process {pid}\) has ended, so"):
        first.meet()


def test_a_rank_that_comes_while_it_is_looked_at_is_not_missed(monkeypatch):
    """It came and ended between the look at its count and the look at its process."""
    first, second = meetings(2)

    def has_ended(rank):
        second.arrive()
        return True

    monkeypatch.setattr(first, "_has_ended", has_ended)
    first.meet()

    assert second._count == 1


@pytest.mark.parametrize("ranks", [2, 5])
def test_no_rank_leaves_a_meeting_before_all_have_come(ranks, seed):
    """Threads with random delays: at every meeting each sees what all others wrote before it, and nothing later."""
    written, wrong = [0] * ranks, []
    parties = meetings(ranks)

    def run(rank):
        draw = random.Random(seed + rank)
        for turn in range(1, 60):
            parties[rank].wait()
            time.sleep(draw.choice((0.0, 0.0, 1e-4, 2e-3)))
            written[rank] = turn
            parties[rank].meet()
            if any(one != turn for one in written):
                wrong.append((rank, turn, list(written)))
            time.sleep(draw.choice((0.0, 0.0, 1e-4)))
            parties[rank].arrive()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert wrong == []
