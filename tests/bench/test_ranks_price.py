"""What a step pays for numbers, word, marks and times of two ranks, beside gloo's collectives for the first two."""

from __future__ import annotations

import itertools
import json
import os
import resource

import pytest
import torch
from torch import distributed

from tolariad.channel.group_page import GroupPage, Line
from tolariad.channel.points import FollowerPoints, LeaderPoints
from tolariad.trainer.ranks.group import Follower, Leader

pytestmark = pytest.mark.bench
STEPS, ROUNDS = 400, 5
LINE = Line(0.5, 1.5, 0.0, 1, 1, 1, 1)
# In microseconds of processor time a step, at rank 0 with two ranks.
LIMIT_US = 25.0


class NoOrders:
    """The end of a channel on which nothing comes."""

    listed = 0

    def attend(self, obey):
        """Nothing comes."""

    def collect(self):
        """Nothing comes."""


class Wrapped:
    """What the clock asks of a model in DistributedDataParallel."""

    require_backward_grad_sync = True

    def _sync_buffers(self):
        """Send nothing."""


def step_of(group):
    """Return what a step does for its numbers, as StepperOfRanks: marks before two waits, and times if it has some."""
    clock, numbers, sent = group.clock, itertools.count(1), lambda: None
    clock.watch(Wrapped())

    def step():
        number = next(numbers)
        clock.of_wait(sent)
        clock.begins_backward()
        is_timed = clock.is_on
        since = clock.computed() if is_timed else 0
        group.exchange(LINE)
        if is_timed:
            clock.met(since, number, 1)
        else:
            clock.over(number)

    return step


def by_page(rank, page):
    """Return a step's exchange by the group page."""
    if rank:
        page = GroupPage.attach(os.dup(page.descriptor), rank)
        follower = Follower(page, FollowerPoints(page, rank), int)
        exchange = step_of(follower)

        def follow():
            exchange()
            while not follower.may_leave:
                follower.wait(0.001)

        return follow
    leader = Leader(page, LeaderPoints(page), int)
    leader.attend(NoOrders())
    exchange = step_of(leader)

    def lead():
        exchange()
        leader.leave(quietly=True)

    return lead


def by_gloo():
    """Return the same by two collectives."""
    numbers, word = torch.zeros(2, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)

    def exchange():
        distributed.all_reduce(numbers)
        distributed.broadcast(word, 0)

    return exchange


def processor_us(exchange):
    """Return the processor time of this process for an exchange, in microseconds."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(STEPS):
        exchange()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / STEPS * 1e6


def be(rank, page, folder, output):
    """Be one of two ranks, and write down the least of several rounds of each way."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
    ways = {"page": by_page(rank, page), "gloo": by_gloo()}
    found = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, exchange in ways.items():
            distributed.barrier()
            found[name].append(processor_us(exchange))
    os.write(output, json.dumps({name: min(times) for name, times in found.items()}).encode())


def test_numbers_and_word_cost_less_than_a_collective(tmp_path):
    """At rank 0, with two ranks: all ranks exchange numbers, and rank 0 says what follows."""
    page, (ours, theirs) = GroupPage.create(2), os.pipe()
    other = os.open(os.devnull, os.O_WRONLY)
    pids = []
    for rank in range(2):
        pid = os.fork()
        if pid == 0:
            try:
                be(rank, page, tmp_path, other if rank else theirs)
            finally:
                os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    found = json.loads(os.read(ours, 1 << 16))
    print(f"\nprocessor time at rank 0, us a step: page {found['page']:.1f}, gloo {found['gloo']:.1f}")

    assert found["page"] <= LIMIT_US
    assert found["page"] < found["gloo"]
