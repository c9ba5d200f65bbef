"""Want of space, through `decide`: the run pauses, says so, begins nothing that takes space, and goes on by itself."""

from __future__ import annotations

import pytest

from journal.format import FIRST_SEGMENT_BYTES as FORMAT_FIRST_SEGMENT_BYTES
from journal.rotation import Growth
from tolariad.core.base import Actor, Refusal
from tolariad.core.checkpoints import words as ck
from tolariad.core.control import words as cv
from tolariad.core.decide import decide
from tolariad.core.decision import Accepted
from tolariad.core.inputs import (
    BudgetsReported,
    CommandReceived,
    DiskMeasured,
    Now,
    Opened,
    ReportReceived,
    StartMode,
)
from tolariad.core.run import words as rv
from tolariad.core.run.ask import floor_bytes, is_pausing, reserve_bytes
from tolariad.core.run.slice import Phase
from tolariad.core.state import RunState, fold
from tolariad.core.trainer import words as tv

FLOOR = 3_000_000
LOW = DiskMeasured(free=FLOOR - 1, floor=FLOOR)
ENOUGH = DiskMeasured(free=FLOOR * 2, floor=FLOOR)
STARTED = rv.RunStarted(
    run_id="00", name="run", task="digits", rng_seed=0, config="{}", config_hash="", policy=rv.Policy(epochs=1),
    version="0",
)  # fmt: skip
STOP = cv.StopRequested(mode=rv.StopMode.GRACEFUL, origin=rv.Origin.COMMAND)
TRAINER = tv.TrainerStarted(incarnation=1, pid=7, start_ticks=1, boot_id="00")


def taken(state: RunState, given):
    decision = decide(state, given, Now(wall=1, mono=1))
    return decision.state, decision


def ordered(state: RunState, command):
    return taken(state, CommandReceived(command=command, actor=Actor()))


def kinds(decision):
    return [type(one) for one in (*decision.events, *decision.effects)]


def test_a_living_trainer_is_held_and_released():
    """DiskLow and an order to stand; with space DiskRecovered, whose cause it is, and the order to go on."""
    state = fold(RunState(), (STARTED, TRAINER))
    low, decision = taken(state, LOW)
    assert kinds(decision) == [rv.DiskLow, cv.Hold]
    assert is_pausing(low)
    stands = fold(low, (rv.RunPaused(applied_before_step=4),))
    assert stands.run.phase is Phase.PAUSED

    after, decision = taken(stands, ENOUGH)
    assert kinds(decision) == [rv.DiskRecovered, rv.RunResumed, cv.Release]
    assert decision.events[0].cause == low.disk.low.seq
    assert (after.run.pause, after.disk.low, after.run.phase) == (None, None, Phase.RUNNING)


def test_without_a_trainer_the_pause_is_reached_at_once_and_a_trainer_is_started_later():
    """A start on a full disk: paused; a restart of the daemon leaves it so; then it goes on."""
    low, decision = taken(fold(RunState(), (STARTED,)), LOW)
    assert kinds(decision) == [rv.DiskLow, rv.RunPaused]
    assert taken(low, Opened(mode=StartMode.EXPLICIT, facts=()))[1].effects == ()
    after, decision = taken(low, ENOUGH)
    assert kinds(decision) == [rv.DiskRecovered, rv.RunResumed, tv.SpawnTrainer]
    assert after.run.pause is None


def test_the_same_measurement_again_is_no_news_and_a_little_space_is_not_enough():
    """One event a change: nothing while it stays low, nothing at the floor itself, nothing while there is plenty."""
    low, _ = taken(fold(RunState(), (STARTED,)), LOW)
    for given in (LOW, DiskMeasured(free=0, floor=FLOOR), DiskMeasured(free=FLOOR, floor=FLOOR)):
        assert kinds(taken(low, given)[1]) == []
    assert kinds(taken(fold(RunState(), (STARTED,)), ENOUGH)[1]) == []


def test_a_pause_that_somebody_ordered_stays():
    """Before or after the disk ran low: space alone does not end it, `resume` does."""
    before = fold(RunState(), (STARTED, TRAINER, cv.PauseRequested(), rv.RunPaused(applied_before_step=1)))
    low, decision = taken(before, LOW)
    assert kinds(decision) == [rv.DiskLow]
    assert taken(low, ENOUGH)[0].run.phase is Phase.PAUSED

    mine, _ = taken(fold(RunState(), (STARTED, TRAINER)), LOW)
    mine = fold(mine, (rv.RunPaused(applied_before_step=1),))
    paused, decision = ordered(mine, cv.Pause())
    assert isinstance(decision.answer, Accepted)
    after, decision = taken(paused, ENOUGH)
    assert (kinds(decision), after.run.phase) == ([rv.DiskRecovered], Phase.PAUSED)
    assert isinstance(ordered(after, cv.Resume())[1].answer, Accepted)


def test_below_the_floor_nothing_is_begun_that_takes_space():
    """No resume, no checkpoint by order, by time, by epoch or at a stop, no measurements."""
    low, _ = taken(
        fold(RunState(), (STARTED, TRAINER, tv.TrainerStarted(incarnation=1, pid=7, start_ticks=1, boot_id="00"))), LOW
    )
    refused = ordered(fold(low, (rv.RunPaused(applied_before_step=1),)), cv.Resume())[1].answer
    assert isinstance(refused, Refusal)
    assert "disk is low" in refused.why
    stopping = fold(low, (cv.StopRequested(mode=rv.StopMode.GRACEFUL, origin=rv.Origin.COMMAND),))
    held = ReportReceived(incarnation=1, report=cv.HeldReport(step=1))
    assert kinds(taken(stopping, held)[1]) == [tv.ExitTrainer]
    assert kinds(taken(low, BudgetsReported(tallies=()))[1]) == []
    assert isinstance(ordered(low, cv.Checkpoint())[1].answer, Refusal)


@pytest.mark.parametrize(
    "end", [rv.RunCompleted(step=1, epochs=1, checkpoint=""), rv.RunFailed(kind=rv.FailureKind.TRAINER, why="")]
)
def test_a_run_that_is_over_does_not_care(end):
    """Nothing is recorded, so that a full disk is not written to for nothing."""
    assert kinds(taken(fold(RunState(), (STARTED, end)), LOW)[1]) == []


def test_the_reserve_is_three_segments_of_the_length_that_the_journal_has_reached():
    """A small run runs on a small disk: three megabytes at first. The plan of lengths is the journal's own."""
    for most in (10**8, 65_536, 4_000_000):
        plan = Growth.between(FORMAT_FIRST_SEGMENT_BYTES, most, 512)
        for number in range(60):
            assert abs(reserve_bytes(number, most) - 3 * plan.planned(number + 1)) < 3 * 512
    assert reserve_bytes(1, 10**8) == 3 << 20
    assert reserve_bytes(1000, 10**8) == 3 * 10**8


def test_the_floor_is_the_reserve_and_a_checkpoint():
    """The newest one's size counts; before there is any, none does."""
    state = fold(RunState(), (STARTED,))
    assert floor_bytes(state, 300) == 300
    begun = ck.CheckpointBegun(id="c000001", reason=ck.CheckpointReason.START)
    committed = ck.CheckpointCommitted(
        id="c000001", step=0, epoch=1, batch=0, manifest="", pieces=(), size=1000, seconds=0.0, branch=0,
        environment="", cause=2,
    )  # fmt: skip
    assert floor_bytes(fold(state, (begun, committed)), 300) == 1300


@pytest.mark.parametrize(
    "before",
    [(), (rv.DiskLow(free=1, floor=FLOOR), STOP, rv.RunStopped(step=0, mode=rv.StopMode.GRACEFUL))],
    ids=["new", "low before"],
)
def test_a_start_on_a_low_disk_pauses_before_it_has_a_trainer(before):
    """Measured with the opening: no trainer is spawned that would need space; it is when there is some."""
    state = fold(RunState(), (STARTED, *before))
    low, decision = taken(state, Opened(mode=StartMode.EXPLICIT, facts=(), disk=LOW))
    assert tv.SpawnTrainer not in kinds(decision)
    assert kinds(decision)[-2:] == [rv.DiskLow, rv.RunPaused]
    assert (low.run.phase, is_pausing(low)) == (Phase.PAUSED, True)
    assert kinds(taken(low, ENOUGH)[1]) == [rv.DiskRecovered, rv.RunResumed, tv.SpawnTrainer]


def test_a_start_with_space_or_without_a_measurement_is_as_ever():
    """A trainer at once."""
    for disk in (ENOUGH, None):
        _, decision = taken(fold(RunState(), (STARTED,)), Opened(mode=StartMode.EXPLICIT, facts=(), disk=disk))
        assert kinds(decision) == [tv.SpawnTrainer]
