"""The points of a group, over random interleavings of the real code: one gate, one place for each order."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tolariad.channel.group_page import SLOTS, GroupPage, Line, Word
from tolariad.channel.points import FollowerPoints, LeaderPoints

STEPS = 8
TURNS_MAX = 60_000


class World:
    """A recorder, and the trainers of a group, of which a scheduler runs one at a time."""

    def __init__(self, rnd, page, ranks):
        self.rnd, self.page = rnd, page
        self.durable, self.reports, self.is_frozen, self.sent = 0, [], False, 0
        self.applied = [0] * ranks
        # For each rank the point at which it got each order of the list, and the numbers that it has read.
        self.got = [[] for _ in range(ranks)]
        self.read = [[] for _ in range(ranks)]

    def recorder(self):
        """Make steps durable, send orders, freeze and thaw, at random."""
        while True:
            if self.reports and self.rnd.random() < 0.5:
                self.durable = self.reports.pop(0)
            if self.rnd.random() < 0.1 and self.sent < 9:
                self.sent += 1
            if self.rnd.random() < 0.05:
                self.is_frozen = not self.is_frozen
            yield

    def take(self, rank, points):
        """Get the orders that the present point allows."""
        while len(self.got[rank]) < points.limit:
            self.got[rank].append(points.point)

    def update(self, rank, step):
        """Make an update: never before this rank's last one is durable."""
        assert self.durable >= self.applied[rank]
        self.applied[rank] = step

    def exchange(self, rank, points, step):
        """Exchange the numbers of a step: each rank's are those of the step, and its own."""
        lines = yield from points.exchange(Line(loss=step + rank / 8, step=step, place=rank, data=step))
        assert [line.step for line in lines] == [step] * len(lines)
        self.read[rank].append(tuple(line.loss for line in lines))

    def leader(self, skips):
        """Rank 0. `skips`: steps without an update, which pass no gate."""
        points = LeaderPoints(self.page)
        for step in range(1, STEPS + 1):
            yield from self.exchange(0, points, step)
            if step not in skips:
                while self.durable < self.applied[0] or self.is_frozen:
                    if self.sent > points.limit:
                        points.obey(self.sent)
                        self.take(0, points)
                    yield
                yield from points.go(quietly=self.sent == points.limit)
                self.update(0, step)
                yield
                self.reports.append(step)
            if not points.passes():
                points.arrive()
                for _ in range(self.rnd.randrange(1, 5)):
                    if self.sent > points.limit:
                        points.obey(self.sent)
                        self.take(0, points)
                    yield
                yield from points.go()

    def follower(self, rank, skips, *, is_broken):
        """Any other rank. `is_broken`: it looks at the recorder's gate itself, and at what was sent."""
        points = FollowerPoints(self.page, rank)
        for step in range(1, STEPS + 1):
            yield from self.exchange(rank, points, step)
            if step not in skips:
                if is_broken:
                    while self.durable < self.applied[rank] or self.is_frozen:
                        yield
                    points.limit = max(points.limit, self.sent)
                    self.take(rank, points)
                yield from self.heard(rank, points)
                self.update(rank, step)
                yield
            if not points.passes():
                points.arrive()
                yield from self.heard(rank, points)

    def heard(self, rank, points):
        """Obey what rank 0 says at this point, until it lets this rank leave."""
        while not points.hear():
            self.take(rank, points)
            yield
        self.take(rank, points)


def run(seed, ranks, *, skips=(), is_broken=False):
    """Run a group to its end. Return the world."""
    rnd = random.Random(f"{seed} points")
    page = GroupPage.create(ranks)
    try:
        world = World(rnd, page, ranks)
        alive = {0: world.leader(skips)}
        alive |= {r: world.follower(r, skips, is_broken=is_broken) for r in range(1, ranks)}
        recorder = world.recorder()
        for _ in range(TURNS_MAX):
            if not alive:
                break
            who = rnd.choice([-1, *alive])
            try:
                next(recorder if who < 0 else alive[who])
            except StopIteration:
                del alive[who]
        assert not alive, f"deadlock of ranks {sorted(alive)} (seed {seed})"
    finally:
        page.close()
    return world


def is_alike(world):
    """Return whether every order came at one point on all ranks, as far as all have got it."""
    return all(len(set(points)) == 1 for points in zip(*world.got, strict=False))


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("skips", [(), (2, 3, 7)], ids=["every step", "some skipped"])
def test_all_ranks_do_the_same_at_the_same_place(seed, ranks, skips):
    """No update before the one before is durable; an order comes at one point; nobody waits for ever."""
    for number in range(60):
        world = run(f"{seed} {number}", ranks, skips=skips)

        assert is_alike(world), f"seed {seed} {number}: {world.got}"
        assert world.applied == [STEPS] * ranks
        assert len({tuple(read) for read in world.read}) == 1


def test_ranks_that_look_at_the_recorder_themselves_differ(seed):
    """The control: without the word of rank 0 an order acts at different places."""
    assert not all(is_alike(run(f"{seed} {number}", 3, is_broken=True)) for number in range(40))


def test_a_line_that_is_written_in_part_is_no_line():
    """Whatever part of it has become visible, it is not taken for the line of its point."""
    page = GroupPage.create(2)
    page.write_line(1, 5, Line(0.5, 1.5, 0.0, 7, 8, 9, 10))
    at = page._line_at(1, 5)
    whole = list(page._words[at : at + 8])
    for missing in range(8):
        page._words[at + missing] = 0
        assert (page.line(1, 5) is None) == (whole[missing] != 0)
        page._words[at + missing] = whole[missing]

    assert page.line(1, 5) == Line(0.5, 1.5, 0.0, 7, 8, 9, 10)
    assert page.line(1, 5 + SLOTS) is None
    page.close()


def test_a_page_is_that_of_its_group_for_whoever_attaches_it():
    """Another rank maps the same memory; any other file is refused."""
    page = GroupPage.create(3)
    other = GroupPage.attach(os.dup(page.descriptor))
    page.write_word(4, Word.GO, 77)
    other.write_line(2, 4, Line(step=3))

    assert other.ranks == 3
    assert other.word(4) == (Word.GO, 77)
    assert other.word(8) is None
    assert page.line(2, 4) == Line(step=3)
    with Path("/dev/zero").open("rb+") as zero, pytest.raises(ValueError, match="not a group page"):
        GroupPage.attach(zero.fileno())
    other.close()
    page.close()
