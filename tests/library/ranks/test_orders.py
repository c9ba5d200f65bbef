"""Orders, verdicts and ends act at the same step on every rank of a group."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from tests.library.inside import ordered, state_of
from tests.library.ranks.groups import EPOCHS, Program, start, until_done
from tests.recorded import events_of, of, sound
from tests.waiting import wait_for
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.storage import CheckpointUnusable
from tolariad.trainer.rollback import handler

STEPS = EPOCHS * 5


class Watching(Program):
    """Writes down what each rank has seen after each step: the learning rate, and a sum of the model.

    `order(program, step)` is called in rank 0 after each step.
    """

    def __init__(self, *given, **more):
        super().__init__(*given, **more)
        self.seen, self.order = [], lambda program, step: None
        self.after = self.look

    def look(self, _, rank, step):
        """Write down what this rank sees."""
        setup = self.run._trainer.setup
        weight = float(next(setup.model.parameters()).detach().sum())
        self.seen.append((step, self.run.batch, setup.optimizer.param_groups[0]["lr"], weight))
        if rank == 0:
            self.order(self, step)

    def __call__(self, rank):
        """Train, and return what was seen too."""
        return {**super().__call__(rank), "seen": self.seen}


def go(tmp_path, order=None, program=None):
    """Run a group of two to its end, with an order of rank 0 after a step. Return what one has seen, and the events."""
    tmp_path.mkdir(exist_ok=True)
    program = program or Watching(tmp_path / "run")
    program.order = order or program.order
    found = start(2, program, tmp_path)
    assert [one.get("error") for one in found] == [None, None]
    one, other = (rank["seen"] for rank in found)
    assert one == other
    assert found[0]["steps"] == found[1]["steps"]
    return one, sound(tmp_path / "run")


def at(step, *commands):
    """Return a hook that orders something after a step, once."""

    def order(program, made):
        if made == step:
            assert all(ordered(program.tolaria, command) for command in commands)

    return order


def test_a_rate_order_acts_at_one_step(tmp_path):
    """The rates of both ranks are the same after each step, and change."""
    seen, events = go(tmp_path, at(4, m.LrSet(group="default", value=0.005)))
    calm, _ = go(tmp_path / "calm")

    assert len(of(events, m.OrderActed)) == 1
    assert seen[:4] == calm[:4]
    assert seen[-1] != calm[-1]


def test_a_pause_holds_all_ranks_until_a_resume(tmp_path):
    """The order to go on comes from another thread of rank 0, once the pause is recorded."""

    def order(program, step):
        if step == 5:
            assert ordered(program.tolaria, m.Pause())
            threading.Thread(target=resume, args=(program,)).start()

    def resume(program):
        wait_for(lambda: state_of(program.tolaria).run.phase is st.Phase.PAUSED, "the pause")
        assert ordered(program.tolaria, m.Resume())

    seen, events = go(tmp_path, order)

    assert len(of(events, m.RunPaused)) == 1
    assert len(seen) == STEPS


def test_another_end_and_a_checkpoint_are_those_of_all_ranks(tmp_path):
    """The run stops at its new end on both ranks."""
    seen, events = go(tmp_path, at(3, m.Checkpoint(), m.Extend(steps=8)))

    assert [step for step, *_ in seen] == [*range(1, 9)]
    assert any(one.reason is m.CheckpointReason.ORDERED for one in of(events, m.CheckpointBegun))


@pytest.mark.sample(1)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_loss_that_is_not_finite_on_one_rank_is_skipped_by_all(tmp_path, rank):
    """The gradients of all are spoilt by it, and the loss that is recorded is that of all."""
    program = Watching(tmp_path / "run")
    program.factor = lambda mine, epoch, batch: float("nan") if (mine, epoch, batch) == (rank, 2, 1) else 1.0
    seen, events = go(tmp_path, program=program)
    (skipped,) = of(events, m.StepSkipped)

    assert (skipped.epoch, skipped.reason) == (2, m.SkipReason.NON_FINITE)
    assert len({step for step, *_ in seen}) == STEPS - 1


def test_batches_in_quarantine_are_passed_over_by_all_ranks(tmp_path):
    """Each makes a step less."""
    seen, events = go(tmp_path, at(4, m.QuarantineAdd(batches=m.Batches(2, 2, 2))))

    assert [one.reason for one in of(events, m.StepSkipped)] == [m.SkipReason.QUARANTINED]
    assert len(seen) == STEPS - 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("ranks", [(0, 1), (0,), (1,)], ids=str)
def test_a_stop_that_any_rank_asks_for_stops_all_with_a_checkpoint(tmp_path, ranks):
    """It is recorded once, and the next start goes on to the same bits."""
    calm = start(2, Program(tmp_path / "calm"), tmp_path)
    program = Program(tmp_path / "run")
    program.after = lambda program, rank, step: program.run.stop() if rank in ranks and step == 6 else None
    found = start(2, program, tmp_path)

    assert [one["phase"] for one in found] == ["stopped", "stopped"]
    assert found[0]["steps"] == found[1]["steps"] < STEPS
    assert start(2, Program(tmp_path / "run"), tmp_path) == calm


@pytest.mark.sample(1)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_to_one_rank_stops_all(tmp_path, rank):
    """The rank that got it ends its program, as a program of one process does; the others end their loops."""
    program = Program(tmp_path / "run")
    program.after = lambda _, mine, step: os.kill(os.getpid(), signal.SIGINT) if (mine, step) == (rank, 4) else None
    found = start(2, program, tmp_path)

    assert [one["phase"] for one in found] == ["stopped", "stopped"]
    assert until_done(2, Program(tmp_path / "run"), tmp_path)[0][0]["steps"] == STEPS


def test_loops_that_all_ranks_leave_by_break_stop_with_a_checkpoint(tmp_path):
    """As early stopping does it."""

    class Leaving(Program):
        def train(self, run, *given):
            for epoch in run.epochs(EPOCHS):
                for batch in run.batches():
                    self.step_of(run, batch, epoch, *given)
                    if run._trainer.step == 7:
                        break
                else:
                    run.validated(loss=0.5)
                    continue
                break

    found = start(2, Leaving(tmp_path / "run"), tmp_path)

    assert [(one["phase"], one["steps"]) for one in found] == [("stopped", 7)] * 2


class GoingBack(Watching):
    """Orders a rollback after step 8, once. `in_rank_1` takes the place of a function of the rollback in rank 1."""

    def __init__(self, folder, **in_rank_1):
        super().__init__(folder / "run")
        self.once, self.in_rank_1 = folder / "once", in_rank_1
        self.once.touch()
        self.order = self.go_back

    def go_back(self, program, made):
        if made == 8 and self.once.exists():
            self.once.unlink()
            assert ordered(program.tolaria, m.Rollback(epoch=1, reason="a test"))

    def __call__(self, rank):
        for name, function in self.in_rank_1.items() if rank == 1 else ():
            setattr(handler, name, function)
        return super().__call__(rank)


def test_a_rollback_goes_back_on_all_ranks_together(tmp_path):
    """The steps after the target come out as the first time, on each: BatchNorm and dropout of a rank are back too."""
    found = start(2, GoingBack(tmp_path), tmp_path)
    (done,) = of(events_of(tmp_path / "run"), m.RolledBack)
    # Without the batch: the step that a rollback unwinds is seen as the one before it, at its own batch.
    seen = {(step, rate, weight) for step, _, rate, weight in found[0]["seen"]}
    counts = [one[0] for one in found[0]["seen"]].count

    assert [(one.get("error"), one["steps"]) for one in found] == [(None, STEPS)] * 2
    assert found[0]["seen"] == found[1]["seen"]
    assert not done.by_start
    assert len(seen) == STEPS
    assert counts(done.step + 1) == 2
    assert found[0]["bits"]["0.weight"] == found[1]["bits"]["0.weight"]


def test_if_one_rank_cannot_go_back_none_does(tmp_path):
    """The refusal names the rank, and the run goes on from where it was."""

    def refuse(*_):
        raise CheckpointUnusable("a file", "is not as it should be")

    found = start(2, GoingBack(tmp_path, check_target=refuse), tmp_path)
    events = events_of(tmp_path / "run")

    assert [(one.get("error"), one["steps"]) for one in found] == [(None, STEPS)] * 2
    assert found[0]["seen"] == found[1]["seen"]
    assert not of(events, m.RolledBack)
    assert "rank 1: a file: is not as it should be" in of(events, m.RollbackAborted)[0].why


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["load", "restore"])
def test_a_rank_that_is_killed_in_a_rollback_leads_to_one_of_all(tmp_path, name):
    """Before its vote, or before it copies: the next start begins at the target, with the bits of a plain rollback."""
    plain = tmp_path / "plain"
    plain.mkdir()
    (expected, _), _ = until_done(2, GoingBack(plain), plain)
    token = tmp_path / "token"
    token.touch()
    original = getattr(handler, name)

    def die(*given, **more):
        if token.exists():
            token.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*given, **more)

    found, starts = until_done(2, GoingBack(tmp_path, **{name: die}), tmp_path)
    (done,) = of(events_of(tmp_path / "run"), m.RolledBack)

    assert starts == 2
    assert done.by_start or name == "restore"
    assert found[0]["bits"] == expected["bits"]
