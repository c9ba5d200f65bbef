"""Orders of an operator and of signals, through `decide`: what they do, when they are reached, what they survive."""

from __future__ import annotations

import pytest

from tests.core.facts import EPOCHS
from tests.core.simulate import World, completes, find, kinds, tick_until, until
from tests.core.simulated_trainer import STEPS_PER_EPOCH
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.decision import Accepted

TOTAL = EPOCHS * STEPS_PER_EPOCH


def test_pause_is_reached_at_the_next_boundary_and_outlives_the_daemon():
    """Ordered, acknowledged, reached, kept over a restart, left by resume."""
    world = until(World(0), 3)
    answer = world.command(m.Pause(reason="lunch"))
    assert isinstance(answer, Accepted)
    requested = find(world, m.PauseRequested)[0]
    assert answer.seq == world.events.index(requested) + 1
    assert requested.actor is not None
    assert requested.actor.reason == "lunch"

    for _ in range(10):
        world.tick()
    paused = find(world, m.RunPaused)[0]
    assert (paused.cause, paused.root) == (answer.seq, answer.seq)
    assert paused.applied_before_step == 4
    assert world.state.progress.step == 3

    world.restart_daemon()
    world.run(50)
    assert world.state.run.phase is st.Phase.PAUSED
    assert world.trainer is None

    world.command(m.Resume())
    completes(world)


def test_a_pause_that_was_not_reached_is_reached_at_the_next_start():
    """No trainer is started for a run that was to stand still."""
    world = until(World(0), 3)
    world.command(m.Pause())
    world.restart_daemon()

    assert world.state.run.phase is st.Phase.PAUSED
    assert world.trainer is None
    assert not world.due


def test_a_pause_while_the_trainer_waits_for_its_next_start_is_reached_at_once():
    """Nothing trains, so nothing has to be waited for; resume starts a trainer."""
    world = until(World(0), 3)
    world.crash_trainer()
    world.tick()
    world.command(m.Pause())
    assert world.state.run.phase is st.Phase.PAUSED
    assert find(world, m.RunPaused)[-1].cause == find(world, m.RunPaused)[-1].root

    world.run(20)  # the start that was due is refused: its trainer is ended again
    assert world.state.run.phase is st.Phase.PAUSED
    assert world.trainer is None
    world.command(m.Resume())
    completes(world)


@pytest.mark.parametrize("at", range(TOTAL))
def test_a_stop_takes_a_checkpoint_at_the_boundary(at):
    """SIGTERM at any step; the next start goes on from there and re-runs nothing."""
    world = until(World(0), at)
    world.signal()
    world.run()

    assert world.exit == 143
    assert world.state.run.phase is st.Phase.STOPPED
    stopped = find(world, m.RunStopped)[-1]
    newest = world.state.checkpoints.newest
    if newest is not None:
        assert (stopped.checkpoint, newest.step) == (newest.id, world.state.progress.step)
    world.restart_daemon()
    completes(world)
    assert find(world, m.RerunBegun) == []


def test_a_stop_whose_last_checkpoint_fails_says_so_and_from_where_a_start_goes_on(monkeypatch):
    """The run stops nevertheless: the next start re-runs the steps after the newest checkpoint. Without a loss it says
    nothing.
    """
    saved, failed, died = (until(World(0), 6) for _ in range(3))
    monkeypatch.setattr(
        failed.trainer, "_written", lambda id_: m.CheckpointFailedReport(id=id_, why="/r: No space left on device")
    )
    exits = []
    monkeypatch.setattr(failed, "_do", lambda effect, do=failed._do: (exits.append(effect), do(effect)))
    for world in (saved, failed, died):
        world.signal()
    tick_until(died, lambda: died.state.checkpoints.open, "the stop's checkpoint")
    died.crash_trainer()
    for world in (saved, failed, died):
        world.run()
    stops = [find(world, m.RunStopped)[-1] for world in (saved, failed, died)]
    failed.restart_daemon()
    failed.run()

    assert [stop.why for stop in stops] == [
        "",
        "the last checkpoint begun was given up: /r: No space left on device; a start continues from step 5",
        "the last checkpoint was not done when the trainer ended; a start continues from step 5",
    ]
    assert f"the run is stopped; {stops[1].why}" in [one.why for one in exits if isinstance(one, m.ExitDaemon)]
    assert (saved.exit, died.exit) == (143, 143)
    assert [one.first for one in find(failed, m.RerunBegun)] == [5]


def test_a_stop_of_a_run_that_no_checkpoint_is_left_of_does_not_say_that_a_start_goes_on(monkeypatch):
    """It says what became of them instead."""
    world = until(World(0), 6)
    failure = m.CheckpointFailedReport(id="c000003", why="disk full")
    monkeypatch.setattr(world.trainer, "_written", lambda _: failure)
    ids = [one.id for one in world.state.checkpoints.catalogue]
    for one in ids:
        world.give(m.Scheduled(recorded=m.CheckpointRejected(id=one, file="model", why="torn")))
    world.signal()
    world.run()

    assert find(world, m.RunStopped)[-1].why == (
        f"the last checkpoint begun was given up: disk full; none can be used ({len(ids)} rejected)"
    )


def test_a_second_signal_does_not_wait_for_the_boundary():
    """The trainer is killed; the newest checkpoint stands."""
    world = until(World(0), 6)
    world.signal()
    world.signal(2)
    world.run()

    assert world.exit == 143
    assert world.state.run.phase is st.Phase.STOPPED
    assert find(world, m.RunStopped)[0].mode is m.StopMode.KILL
    assert world.state.checkpoints.newest is not None
    assert world.state.checkpoints.newest.step == 4


def test_a_paused_run_that_a_signal_stops_is_still_paused_at_the_next_start():
    """A reboot must not wake a run that an operator had put to sleep; a stop by command does withdraw the pause."""
    world = until(World(0), 3)
    world.command(m.Pause())
    world.run(10)
    world.signal()
    world.run()
    world.restart_daemon()
    assert world.state.run.phase is st.Phase.PAUSED

    world.command(m.Stop())
    world.run()
    world.restart_daemon()
    completes(world)


@pytest.mark.parametrize("origin", ["command", "signal"])
def test_a_stop_cut_short_ends_by_where_it_came_from(origin):
    """Ordered by a command: finished without a trainer. By a signal: forgotten, the run goes on."""
    world = until(World(0), 3)
    if origin == "command":
        world.command(m.Stop())
    else:
        world.signal()
    world.restart_daemon()

    if origin == "command":
        assert (world.state.run.phase, world.exit) == (st.Phase.STOPPED, 0)
    else:
        assert kinds(world)[-1] == "StopAborted"
        assert world.state.run.phase is st.Phase.RECOVERING
        assert world.due


def test_a_repeated_id_gets_the_first_answer_and_changes_nothing():
    """Accepted or refused, also after a restart of the daemon."""
    world = until(World(0), 3)
    first = world.command(m.Pause(id="p1"))
    refused = world.command(m.Pause(id="p2"))
    before = len(world.events)
    assert isinstance(refused, m.Refusal)
    assert refused.error == "WrongPhase"
    assert world.command(m.Pause(id="p1")) == first
    again = world.command(m.Pause(id="p2"))
    assert isinstance(again, m.Refusal)
    assert (again.error, again.why) == (refused.error, refused.why)
    assert len(world.events) == before

    world.restart_daemon()
    assert world.command(m.Pause(id="p1")) == first
    for number in range(st.OUTCOMES_MAX):
        world.command(m.Note(text="x", id=f"n{number}"))
    assert len(world.state.control.outcomes) == st.OUTCOMES_MAX
    assert world.state.control.outcome("p1") is None


@pytest.mark.parametrize("is_refused", [False, True])
def test_an_id_that_another_order_had_is_refused_and_that_one_keeps_it(is_refused):
    """It is no repeat: its caller would wait for the end of an order that was never given."""
    world = until(World(0), 3)
    if is_refused:
        world.command(m.Pause())
    first = world.command(m.Pause(id="a1"))
    before = len(world.events)
    answer = world.command(m.Checkpoint(id="a1"))
    again = world.command(m.Pause(id="a1"))

    assert isinstance(answer, m.Refusal)
    assert (answer.error, "'a1' was given to another order, Pause" in answer.why) == ("Refused", True)
    assert len(world.events) == before
    if is_refused:
        assert isinstance(again, m.Refusal)
        assert (again.error, again.why) == (first.error, first.why)
    else:
        assert again == first


@pytest.mark.parametrize("command", [m.Note(text=" "), m.Note(text="x" * 5000), m.Pause(id="i" * 200)])
def test_a_command_that_makes_no_sense_is_refused_and_leaves_no_event(command):
    """Bad input changes nothing."""
    world = until(World(0), 3)
    before = len(world.events)
    answer = world.command(command)

    assert isinstance(answer, m.Refusal)
    assert answer.error == "Refused"
    assert len(world.events) == before
