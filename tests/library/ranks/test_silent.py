"""A rank that still runs, but does not come to where the others wait, is named, and the group comes back."""

from __future__ import annotations

import os
import time

import pytest

from tests.library.ranks.groups import EPOCHS, Program, until_done
from tests.recorded import events_of, of
from tolariad.channel.group_page import GroupPage, Line
from tolariad.core import messages as m
from tolariad.library.behind import Behind, Progress

STEPS = EPOCHS * 5


def test_the_rank_that_has_come_least_far_is_the_one_that_the_others_wait_for():
    """While one moves, none is; if all stand at one place, nobody can be named."""
    seen = Progress()

    assert seen.look((5, 5, 5), 0.2) is None
    assert seen.look((5, 5, 5), 0.2) is None
    assert seen.look((6, 5, 6), 0.2) is None
    assert seen.look((6, 5, 6), 0.2) == Behind(1, 0.2)
    assert seen.look((6, 5, 6), 0.25) == Behind(1, 0.45)
    assert seen.look((6, 5, 7), 0.2) is None
    assert seen.look((6, 6, 7), 0.2) is None
    assert seen.look((6, 6, 7), 0.2) == Behind(0, 0.2)


def test_marks_count_from_point_to_point():
    """A rank may make fewer marks than another before a point: from there on they are level again."""
    page = GroupPage.create(2)
    other = GroupPage(os.dup(page.descriptor), 2, 1)
    page.write_line(0, 7, Line())
    page.mark()
    page.mark()
    other.write_line(1, 7, Line())
    other.mark()

    assert page.progress[0] > page.progress[1]
    other.write_line(1, 8, Line())
    assert page.progress[0] < other.progress[1]
    page.write_line(0, 8, Line())
    assert len(set(page.progress)) == 1
    other.close()
    page.close()


def test_of_two_ranks_at_one_mark_the_one_with_fewer_collectives_is_behind():
    """Within a backward pass there are no marks. A beat shows how many collectives a rank has begun."""
    page = GroupPage.create(2)
    other = GroupPage(os.dup(page.descriptor), 2, 1)
    begun = {0: 7, 1: 6}
    page.count_by(lambda: begun[0])
    other.count_by(lambda: begun[1])
    seen = Progress()
    page.beat(0, 1)
    other.beat(1, 1)

    assert seen.look(page.progress, 0.2) is None
    assert seen.look(page.progress, 0.2) == Behind(1, 0.2)
    begun[1] = 7
    other.beat(1, 2)
    assert seen.look(page.progress, 0.2) is None
    assert seen.look(page.progress, 0.2) is None
    begun[0] = 9
    page.beat(0, 2)
    other.mark()
    assert seen.look(page.progress, 0.2) is None
    assert seen.look(page.progress, 0.2) == Behind(0, 0.2)
    other.close()
    page.close()


class Sleeping(Program):
    """One rank sleeps once: in its epoch's code, with its data, in a pass, or before its step."""

    def __init__(self, folder, rank, place):
        super().__init__(folder / "run", trainer={"silent_s": 3.0})
        self.rank, self.place, self.once = rank, place, folder / "once"
        self.once.touch()

    def sleep(self, rank, place):
        """Sleep for ever, if this is the rank and the place."""
        if (rank, place) == (self.rank, self.place) and self.run._trainer.step >= 6 and self.once.exists():
            self.once.unlink()
            while True:
                time.sleep(60)

    def train(self, run, rank, model, sampler):
        """Be the loop."""
        model.module[2].register_forward_pre_hook(lambda *_: self.sleep(rank, "forward"))
        model.module[0].weight.register_hook(lambda _: self.sleep(rank, "backward"))
        for epoch in run.epochs(self.epochs):
            sampler.set_epoch(epoch)
            for batch in run.batches():
                self.sleep(rank, "data")
                self.step_of(run, batch, epoch, rank, model)
                self.sleep(rank, "after")
            self.sleep(rank, "epoch")
            run.validated(loss=float(rank))


PLACES = ["data", "forward", "backward", "after", "epoch"]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("ranks", "rank", "place"),
    [*((2, rank, place) for rank in (0, 1) for place in PLACES), *((3, 2, place) for place in PLACES)],
)
def test_a_rank_that_sleeps_is_named_and_killed(tmp_path, ranks, rank, place):
    """Wherever it sleeps: the others would wait for half an hour, or for ever."""
    program = Sleeping(tmp_path, rank, place)
    found, starts = until_done(ranks, program, tmp_path)
    events = events_of(tmp_path / "run")
    told = [one.traceback for one in of(events, m.ExceptionRaised)] + [str(one) for one in of(events, m.TrainerDied)]

    assert starts > 1
    assert not program.once.exists()
    assert found[0]["steps"] == (STEPS if ranks == 2 else EPOCHS * 3)
    if rank:
        assert any(f"rank {rank} (process" in one and "was silent for" in one for one in told), told
