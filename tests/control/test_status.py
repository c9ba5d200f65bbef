"""The status of a run: a pure function of the folded state and a few live facts."""

from __future__ import annotations

import math

import msgspec
import pytest
from msgspec.structs import replace

from tests.core.pruning.pruned import PLAN, PrunedWorld
from tests.core.simulate import tick_until
from tolariad.cli.status_words import status_lines, status_row
from tolariad.control.status import Heartbeat, LiveFacts, run_status
from tolariad.core import messages as m
from tolariad.core.calc.text.plain import rfc3339
from tolariad.core.state.run_state import RunState


def facts(recorder, **more):
    return LiveFacts(pid=1, wall_ns=recorder.now.wall, mono_ns=recorder.mono, **more)


def test_a_dead_run_has_no_pid_no_speed_and_no_ages(recorder):
    """Facts that only a daemon has are absent; the rest comes from the fold."""
    shown = run_status(recorder.state, "/r", LiveFacts(segment=3))

    assert (shown.live, shown.pid, shown.steps_per_s, shown.eta_s) == (False, None, None, None)
    assert shown.checkpoint.age_s is None
    assert shown.journal.segment == 3
    assert shown.trainer.alive is False


def test_the_status_says_in_one_line_what_the_detector_does_not_act_on_and_what_is_kept(recorder):
    """No line if it acts and nothing is kept, or if the run is over. What is kept has the command that goes back."""

    def line(**policy: bool) -> list[str]:
        run = recorder.state.run
        known = replace(run, policy=replace(run.policy, **policy))
        shown = run_status(replace(recorder.state, run=known), "/r", facts(recorder))
        return [one for one in status_lines(msgspec.to_builtins(shown)) if "  detector " in one]

    (told,) = line(detect_rollback=False)
    assert "only recorded" in told
    assert line() == []
    recorder.record(m.StatePinned(checkpoint="c000002", step=3, why="lost: loss 3 at step 9"))
    (told,) = line()
    assert (
        told
        == "  detector    has gone back from a rise, and keeps c000002 (step 3) as a way back: lost: loss 3 at step 9"
    )
    recorder.record(m.HeldOnTo(checkpoint="c000002", step=3, why="2 returns did not help"))
    (told,) = line()
    assert told.endswith("`tolaria rollback /r --to c000002` goes back there")
    recorder.record(m.RunCompleted(step=1, epochs=1, checkpoint=""))
    (told,) = line(detect_rollback=False)
    assert "--from /r@c000002 " in told


def test_the_status_shows_the_newest_announced_stage(recorder):
    """What was announced, and from which step on. Without a stage there is no line."""

    def line() -> list[str]:
        shown = run_status(recorder.state, "/r", facts(recorder))
        return [one for one in status_lines(msgspec.to_builtins(shown)) if one.startswith("  stage ")]

    assert line() == []
    for number, why in enumerate(("new classes", "harder\x1b[31m batches"), 1):
        order = m.BeginStage(why=why)
        recorder.record(m.OrderActed(order=order, applied_before_step=7 * number, number=number))
    assert line() == ["  stage       since step 14: harder\\x1b[31m batches"]


def test_speed_and_time_left_follow_the_steps(recorder):
    """Steps of ten milliseconds give almost a hundred steps per second, and the matching time left."""
    for _ in range(9):
        recorder.step()
    shown = run_status(recorder.state, "/r", facts(recorder))

    assert shown.steps_total == 30
    assert 10 < shown.steps_per_s <= 100
    assert shown.eta_s == pytest.approx(20 / shown.steps_per_s)


@pytest.mark.parametrize(
    "ended", [m.RunResumed(), m.RerunFinished(first=1, last=9, compared=9)], ids=["pause", "re-run"]
)
def test_time_in_which_no_step_counts_does_not_slow_the_speed(recorder, ended):
    """After a pause or a re-run of 1000 s the time left is that of the steps, not of the interruption."""
    recorder.step()
    recorder.mono += 1000 * 10**9
    recorder.record(ended)
    for _ in range(5):
        recorder.step()

    shown = run_status(recorder.state, "/r", facts(recorder))
    assert 10 < shown.steps_per_s <= 101


def test_a_complete_run_over_data_without_a_length_had_the_steps_that_it_made(recorder):
    """Not those of `stop.steps`, which are only the most that it might have made."""
    for _ in range(3):
        recorder.step()
    recorder.record(m.RunCompleted(step=3, epochs=1, checkpoint="c000001"))
    state = recorder.state
    policy = replace(state.run.policy, stop_steps=1000)
    for an_epoch, total in ((0, state.progress.step), (10, 30)):
        progress = replace(state.progress, steps_per_epoch=an_epoch)
        shown = run_status(replace(state, run=replace(state.run, policy=policy), progress=progress), "/r", LiveFacts())
        assert (shown.phase, shown.steps_total) == ("completed", total)


@pytest.mark.parametrize(
    ("an_epoch", "stop", "total"),
    [
        (10, {}, 30),
        (10, {"stop_steps": 12}, 12),
        (10, {"stop_epochs": 2}, 20),
        (0, {"stop_steps": 12}, 12),
        (0, {}, None),
    ],
)
def test_the_steps_of_a_run_are_those_after_which_it_ends(recorder, an_epoch, stop, total):
    """The total follows from epochs or `stop`; data without a length does not give one."""
    state = recorder.state
    policy = replace(state.run.policy, **stop)
    state = replace(
        state, run=replace(state.run, policy=policy), progress=replace(state.progress, steps_per_epoch=an_epoch)
    )
    shown = run_status(state, "/r", facts(recorder))
    assert (shown.steps_total, shown.steps_per_epoch) == (total, an_epoch or None)


def test_a_journal_that_failed_shows_a_frozen_run(recorder):
    """No event can record it, so the reason comes from the writer."""
    shown = run_status(recorder.state, "/r", facts(recorder, journal_failed="no space left"))

    assert (shown.phase, shown.frozen, shown.journal.failed) == ("frozen", "no space left", "no space left")


def test_an_order_that_is_not_carried_out_yet_is_shown(recorder):
    """Between the order and the boundary."""
    recorder.take(m.CommandReceived(command=m.Pause(), actor=m.Actor(uid=1)))
    assert run_status(recorder.state, "/r", facts(recorder)).ordered == "pause"
    recorder.hold()

    assert run_status(recorder.state, "/r", facts(recorder)).ordered is None


def shown_lines(state):
    status = msgspec.to_builtins(run_status(state, "/r", LiveFacts()))
    return status["pruning"], " ".join(line.strip() for line in status_lines(status) if "pruning" in line)


def test_a_run_that_does_not_prune_shows_no_pruning(recorder):
    """Neither a field nor a line."""
    assert shown_lines(recorder.state) == (None, "")


def test_a_pruned_run_shows_its_phase_and_what_is_under_way():
    """From the first analysis over watched masks to what is left of them; and with pruning switched off again."""
    world = PrunedWorld(1, epochs=5, prune=replace(PLAN, window_steps=100))
    tick_until(world, lambda: world.state.pruning.open is not None, "a cycle")
    assert shown_lines(world.state)[1] == "pruning     ACTIVE_PRUNING, cycle 1 is being analysed"
    tick_until(world, lambda: world.state.pruning.window is not None, "masks")
    pruning, line = shown_lines(world.state)
    until, masked = world.state.pruning.window.until_step, world.state.pruning.pruned

    assert (pruning["total"], pruning["masked"], pruning["window"]["cycle"]) == (100, masked, 1)
    assert f"{masked} of 100 channels masked, 0 removed, the masks of cycle 1 are watched until step {until}" in line
    off = replace(world.state, run=replace(world.state.run, policy=replace(world.state.run.policy, prune=None)))
    assert "DISABLED (`prune.enabled` is false" in shown_lines(off)[1]


def test_failed_cycles_are_shown_until_one_succeeds():
    """With the last reason; when nothing is pruned any more, the phase says it."""
    world = PrunedWorld(1, epochs=5)
    assert "no checkpoint was analysed yet" in shown_lines(world.state)[1]
    failed = replace(world.state.pruning, cycles=2, failures=2, why_failed="it is slow")
    assert "2 cycles in a row failed: it is slow" in shown_lines(replace(world.state, pruning=failed))[1]
    failed = replace(failed, failures=PLAN.failures)
    line = shown_lines(replace(world.state, pruning=failed))[1]

    assert line.count("it is slow") == 1
    assert "DISABLED (3 cycles failed in a row, the last because it is slow" in line


def test_a_failed_run_says_why(recorder):
    """`last_error` is the event's."""
    recorder.record(m.RunFailed(kind=m.FailureKind.TRAINER, why="five deaths"))

    assert run_status(recorder.state, "/r", LiveFacts()).last_error == "five deaths"


def test_after_an_exception_the_status_has_its_own_words(recorder):
    """`last_error` names type, text and place while the run tries again, and not only that there was one."""
    recorder.record(
        m.ExceptionRaised(
            incarnation=1, step=7, traceback="", kind="ValueError", place="t.py:3", text="ValueError: no\n!"
        )
    )
    recorder.record(m.TrainerDied(incarnation=1, reason=m.DeathReason.EXCEPTION, step=7, restart_s=1.0))

    assert run_status(recorder.state, "/r", LiveFacts()).last_error == "the trainer ended: ValueError: no ! (t.py:3)"


def test_the_heartbeat_is_the_pages(recorder):
    """Step, age, activity, waiting."""
    beat = Heartbeat(step=9, age_s=0.5, activity="gate", waiting=True)
    shown = run_status(recorder.state, "/r", facts(recorder, heartbeat=beat)).trainer

    assert (shown.heartbeat_step, shown.heartbeat_age_s, shown.activity, shown.waiting) == (9, 0.5, "gate", True)


def test_every_number_that_may_be_wild_has_its_word(recorder):
    """A loss that is infinite is null with a word."""
    recorder.step(loss=-math.inf)
    shown = run_status(recorder.state, "/r", LiveFacts())

    assert (shown.loss, shown.loss_state) == (None, "neg_inf")


def test_the_empty_state_can_be_shown():
    """A journal without a single event."""
    shown = run_status(RunState(), "/r", LiveFacts())

    assert (shown.phase, shown.step, shown.checkpoint, shown.trainer) == ("starting", 0, None, None)


def test_a_disk_that_is_low_is_shown_with_what_is_wanted(recorder):
    """A full disk pauses the run; the status shows the reason until there is space."""
    assert run_status(recorder.state, "/r", LiveFacts()).disk_low is None
    recorder.record(m.DiskLow(free=1000, floor=30_000))
    shown = run_status(recorder.state, "/r", LiveFacts())
    lines = list(status_lines(msgspec.to_builtins(shown)))
    recorder.record(m.DiskRecovered(free=90_000, floor=30_000))
    after = run_status(recorder.state, "/r", LiveFacts())

    assert shown.disk_low == "the journal's disk is low: 1,000 bytes were free, 30,000 are needed"
    assert [line.split()[0] for line in lines if "1,000 bytes were free" in line] == ["disk"]
    assert after.disk_low is None
    assert not any(line.split()[0] == "disk" for line in status_lines(msgspec.to_builtins(after)))


def test_a_disk_without_any_space_is_shown_although_nothing_can_be_recorded(recorder):
    """The write in flight waits for it: the disk answers, and the status does not say that it is silent."""
    shown = run_status(recorder.state, "/r", LiveFacts(write_age_s=334.0, waits_for_space=True))
    lines = {line.split()[0]: line for line in status_lines(msgspec.to_builtins(shown))}

    assert shown.disk_low == "the journal's disk is full"
    assert "resumes by itself when there is space" in lines["disk"]
    assert "a write has taken 5 min 34 s so far" in lines["journal"]


def test_a_checkpoint_that_did_not_come_to_be_is_shown_until_one_does(recorder):
    """The status gives the reason, so that the newest checkpoint is not taken for the last one that was due."""
    assert run_status(recorder.state, "/r", LiveFacts()).checkpoint.given_up is None
    recorder.take(m.CommandReceived(command=m.Checkpoint(), actor=m.Actor()))
    opened = recorder.state.checkpoints.open[-1].id
    recorder.report(m.CheckpointFailedReport(id=opened, why="cannot be written to /r: No space left on device"))
    shown = run_status(recorder.state, "/r", LiveFacts())
    (line,) = [one for one in status_lines(msgspec.to_builtins(shown)) if one.split()[0] == "checkpoint"]
    recorder.take(m.CommandReceived(command=m.Checkpoint(), actor=m.Actor()))
    recorder.write_checkpoint()

    assert shown.checkpoint.given_up == "cannot be written to /r: No space left on device"
    assert line.endswith("given up: cannot be written to /r: No space left on device")
    assert run_status(recorder.state, "/r", LiveFacts()).checkpoint.given_up is None


def test_where_no_checkpoint_can_be_used_what_became_of_them_is_shown(recorder):
    """It does not say "none yet", nor that a start continues. With a usable checkpoint none of this is shown."""

    def shown():
        status = run_status(recorder.state, "/r", LiveFacts())
        (line,) = [one for one in status_lines(msgspec.to_builtins(status)) if one.split()[0] == "checkpoint"]
        return status.checkpoint_none, line.removeprefix("  checkpoint  ")

    recorder.take(m.CommandReceived(command=m.Checkpoint(), actor=m.Actor()))
    recorder.write_checkpoint()
    before = shown()
    ids = [one.id for one in recorder.state.checkpoints.catalogue]
    other, last = ids
    recorder.record(m.CheckpointRejected(id=other, file="model", why="torn"))
    recorder.record(m.QuarantineAdded(name="q1", why="odd", checkpoint=last))
    kept = shown()
    recorder.record(m.CheckpointDeletionBegun(id=other, why="damaged", size=1), m.CheckpointDeleted(id=other))
    gone = shown()
    recorder.take(m.CommandReceived(command=m.Checkpoint(), actor=m.Actor()))
    opened = recorder.state.checkpoints.open[-1].id
    recorder.report(m.CheckpointFailedReport(id=opened, why="disk full"))
    failed, _ = shown()
    unborn = RunState()

    assert (before[0], before[1].split()[0]) == (None, last)
    assert kept == ("1 rejected, 1 in quarantine", "none is usable: 1 rejected, 1 in quarantine")
    assert gone == ("1 in quarantine, 1 removed", "none is usable: 1 in quarantine, 1 removed")
    assert failed == f"{gone[0]}; the last one was given up: disk full"
    assert "  checkpoint  none yet" in status_lines(msgspec.to_builtins(run_status(unborn, "/r", LiveFacts())))


def test_a_share_of_memory_that_is_exceeded_is_shown_until_it_is_kept(recorder):
    """With its part, what it holds, its limit, and since when."""
    assert run_status(recorder.state, "/r", facts(recorder)).memory is None
    recorder.record(m.MemoryPressed(budget="memory_model", percent=55.0, limit=40.0))
    shown = run_status(recorder.state, "/r", LiveFacts()).memory

    assert (shown.budget, shown.percent, shown.limit, shown.age_s) == ("memory_model", 55.0, 40.0, None)
    assert shown.since.endswith("Z")
    assert run_status(recorder.state, "/r", facts(recorder)).memory.age_s >= 0.0
    recorder.record(m.MemoryRelieved())
    assert run_status(recorder.state, "/r", facts(recorder)).memory is None


def test_conservative_mode_is_shown_with_since_and_why(recorder):
    """From the event that began it to the one that ended it; the duration only with a daemon."""
    assert run_status(recorder.state, "/r", facts(recorder)).conservative is None
    recorder.record(m.ConservativeModeEntered(why="open breaker: lr"))
    begun = recorder.now.wall
    for _ in range(3):
        recorder.step()
    live = run_status(recorder.state, "/r", facts(recorder)).conservative
    dead = run_status(recorder.state, "/r", LiveFacts()).conservative

    assert (live.why, live.since, live.healthy_epochs) == ("open breaker: lr", rfc3339(begun), 0)
    assert live.age_s == pytest.approx((recorder.now.wall - begun) / 1e9)
    assert live.age_s > 0
    assert (dead.since, dead.age_s) == (live.since, None)
    recorder.record(m.ConservativeModeLeft(healthy_epochs=3, seconds=301.0))
    assert run_status(recorder.state, "/r", facts(recorder)).conservative is None


def test_the_ranks_are_shown_with_the_slow_one_and_one_that_is_stopped(recorder):
    """Processes only while the run is live; the local and the whole batch; the slow one in the line of `watch`."""
    times = (
        m.RankTimes(rank=0, pid=10, steps=5, compute_s=1.0, wait_s=3.0, batch=8),
        m.RankTimes(rank=1, pid=11, steps=5, compute_s=4.0, wait_s=0.0, batch=8),
    )
    state = replace(recorder.state, trainer=replace(recorder.state.trainer, alive=True, ranks=times))
    process = {10: "running", 11: "stopped"}
    live = run_status(state, "/r", facts(recorder, process_of=process.__getitem__))
    dead = run_status(state, "/r", LiveFacts())

    def line(shown) -> str:
        return next(line for line in status_lines(msgspec.to_builtins(shown)) if line.startswith("  ranks"))

    assert [one.compute_s for one in live.ranks.ranks] == [0.2, 0.8]
    waits = "the others wait for rank 1 in 75% of a step, batch 8 a rank, 16 in all"
    assert line(live) == f"  ranks       2, rank 1 stopped, {waits}"
    assert line(dead) == f"  ranks       2, {waits}"
    assert "slowest rank 1 (75%)" in status_row(msgspec.to_builtins(live))
    assert run_status(recorder.state, "/r", facts(recorder)).ranks is None


def test_a_rank_without_a_timed_step_is_nobodys_slow_one():
    """Nor is the only one that was timed."""
    one = m.RankTimes(rank=0, pid=10, steps=5, compute_s=1.0, wait_s=3.0)
    assert m.slowest_rank((one, m.RankTimes(rank=1, pid=11, steps=0, compute_s=0.0, wait_s=0.0))) is None
    assert m.slowest_rank(()) is None
