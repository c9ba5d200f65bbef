"""Want of space, through `decide`: the run pauses, says so, begins nothing that takes space, and goes on by itself."""

from __future__ import annotations

import pytest

from journal.format import FIRST_SEGMENT_BYTES as FORMAT_FIRST_SEGMENT_BYTES
from journal.rotation import Growth
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.decision import Accepted
from tolariad.core.rules.table.decide import decide
from tolariad.core.state.run_state import RunState, fold

FLOOR = 3_000_000
LOW = m.DiskMeasured(free=FLOOR - 1, floor=FLOOR)
ENOUGH = m.DiskMeasured(free=FLOOR * 2, floor=FLOOR)
STARTED = m.RunStarted(
    run_id="00", name="run", task="digits", rng_seed=0, config="{}", config_hash="", policy=m.Policy(epochs=1),
    version="0",
)  # fmt: skip
STOP = m.StopRequested(mode=m.StopMode.GRACEFUL, origin=m.Origin.COMMAND)
TRAINER = m.TrainerStarted(incarnation=1, pid=7, start_ticks=1, boot_id="00")


def taken(state: RunState, given):
    decision = decide(state, given, m.Now(wall=1, mono=1))
    return decision.state, decision


def ordered(state: RunState, command):
    return taken(state, m.CommandReceived(command=command, actor=m.Actor()))


def kinds(decision):
    return [type(one) for one in (*decision.events, *decision.effects)]


def test_a_living_trainer_is_held_and_released():
    """DiskLow and an order to stand; with space DiskRecovered, whose cause it is, and the order to go on."""
    state = fold(RunState(), (STARTED, TRAINER))
    low, decision = taken(state, LOW)
    assert kinds(decision) == [m.DiskLow, m.Hold]
    assert q.is_pausing(low)
    stands = fold(low, (m.RunPaused(applied_before_step=4),))
    assert stands.run.phase is st.Phase.PAUSED

    after, decision = taken(stands, ENOUGH)
    assert kinds(decision) == [m.DiskRecovered, m.RunResumed, m.Release]
    assert decision.events[0].cause == low.disk.low.seq
    assert (after.run.pause, after.disk.low, after.run.phase) == (None, None, st.Phase.RUNNING)


def test_without_a_trainer_the_pause_is_reached_at_once_and_a_trainer_is_started_later():
    """A start on a full disk: paused; a restart of the daemon leaves it so; then it goes on."""
    low, decision = taken(fold(RunState(), (STARTED,)), LOW)
    assert kinds(decision) == [m.DiskLow, m.RunPaused]
    assert taken(low, m.Opened(mode=m.StartMode.EXPLICIT, facts=()))[1].effects == ()
    after, decision = taken(low, ENOUGH)
    assert kinds(decision) == [m.DiskRecovered, m.RunResumed, m.SpawnTrainer]
    assert after.run.pause is None


def test_the_same_measurement_again_is_no_news_and_a_little_space_is_not_enough():
    """One event a change: nothing while it stays low, nothing at the floor itself, nothing while there is plenty."""
    low, _ = taken(fold(RunState(), (STARTED,)), LOW)
    for given in (LOW, m.DiskMeasured(free=0, floor=FLOOR), m.DiskMeasured(free=FLOOR, floor=FLOOR)):
        assert kinds(taken(low, given)[1]) == []
    assert kinds(taken(fold(RunState(), (STARTED,)), ENOUGH)[1]) == []


def test_a_pause_that_somebody_ordered_stays():
    """Before or after the disk ran low: space alone does not end it, `resume` does."""
    before = fold(RunState(), (STARTED, TRAINER, m.PauseRequested(), m.RunPaused(applied_before_step=1)))
    low, decision = taken(before, LOW)
    assert kinds(decision) == [m.DiskLow]
    assert taken(low, ENOUGH)[0].run.phase is st.Phase.PAUSED

    mine, _ = taken(fold(RunState(), (STARTED, TRAINER)), LOW)
    mine = fold(mine, (m.RunPaused(applied_before_step=1),))
    paused, decision = ordered(mine, m.Pause())
    assert isinstance(decision.answer, Accepted)
    after, decision = taken(paused, ENOUGH)
    assert (kinds(decision), after.run.phase) == ([m.DiskRecovered], st.Phase.PAUSED)
    assert isinstance(ordered(after, m.Resume())[1].answer, Accepted)


def test_below_the_floor_nothing_is_begun_that_takes_space():
    """No resume, no checkpoint by order, by time, by epoch or at a stop, no measurements."""
    low, _ = taken(
        fold(RunState(), (STARTED, TRAINER, m.TrainerStarted(incarnation=1, pid=7, start_ticks=1, boot_id="00"))), LOW
    )
    refused = ordered(fold(low, (m.RunPaused(applied_before_step=1),)), m.Resume())[1].answer
    assert isinstance(refused, m.Refusal)
    assert "disk is low" in refused.why
    stopping = fold(low, (m.StopRequested(mode=m.StopMode.GRACEFUL, origin=m.Origin.COMMAND),))
    held = m.ReportReceived(incarnation=1, report=m.HeldReport(step=1))
    assert kinds(taken(stopping, held)[1]) == [m.ExitTrainer]
    assert kinds(taken(low, m.BudgetsReported(tallies=()))[1]) == []
    assert isinstance(ordered(low, m.Checkpoint())[1].answer, m.Refusal)


@pytest.mark.parametrize(
    "end", [m.RunCompleted(step=1, epochs=1, checkpoint=""), m.RunFailed(kind=m.FailureKind.TRAINER, why="")]
)
def test_a_run_that_is_over_does_not_care(end):
    """Nothing is recorded, so that a full disk is not written to for nothing."""
    assert kinds(taken(fold(RunState(), (STARTED, end)), LOW)[1]) == []


def test_the_reserve_is_three_segments_of_the_length_that_the_journal_has_reached():
    """A small run runs on a small disk: three megabytes at first. The plan of lengths is the journal's own."""
    for most in (10**8, 65_536, 4_000_000):
        plan = Growth.between(FORMAT_FIRST_SEGMENT_BYTES, most, 512)
        for number in range(60):
            assert abs(q.reserve_bytes(number, most) - 3 * plan.planned(number + 1)) < 3 * 512
    assert q.reserve_bytes(1, 10**8) == 3 << 20
    assert q.reserve_bytes(1000, 10**8) == 3 * 10**8


def test_the_floor_is_the_reserve_and_a_checkpoint():
    """The newest one's size counts; before there is any, none does."""
    state = fold(RunState(), (STARTED,))
    assert q.floor_bytes(state, 300) == 300
    begun = m.CheckpointBegun(id="c000001", reason=m.CheckpointReason.START)
    committed = m.CheckpointCommitted(
        id="c000001", step=0, epoch=1, batch=0, manifest="", pieces=(), size=1000, seconds=0.0, branch=0,
        environment="", cause=2,
    )  # fmt: skip
    assert q.floor_bytes(fold(state, (begun, committed)), 300) == 1300


@pytest.mark.parametrize(
    "before",
    [(), (m.DiskLow(free=1, floor=FLOOR), STOP, m.RunStopped(step=0, mode=m.StopMode.GRACEFUL))],
    ids=["new", "low before"],
)
def test_a_start_on_a_low_disk_pauses_before_it_has_a_trainer(before):
    """Measured with the opening: no trainer is spawned that would need space; it is when there is some."""
    state = fold(RunState(), (STARTED, *before))
    low, decision = taken(state, m.Opened(mode=m.StartMode.EXPLICIT, facts=(), disk=LOW))
    assert m.SpawnTrainer not in kinds(decision)
    assert kinds(decision)[-2:] == [m.DiskLow, m.RunPaused]
    assert (low.run.phase, q.is_pausing(low)) == (st.Phase.PAUSED, True)
    assert kinds(taken(low, ENOUGH)[1]) == [m.DiskRecovered, m.RunResumed, m.SpawnTrainer]


def test_a_start_with_space_or_without_a_measurement_is_as_ever():
    """A trainer at once."""
    for disk in (ENOUGH, None):
        _, decision = taken(fold(RunState(), (STARTED,)), m.Opened(mode=m.StartMode.EXPLICIT, facts=(), disk=disk))
        assert kinds(decision) == [m.SpawnTrainer]
