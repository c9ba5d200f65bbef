"""A run from its first event to its last: through `decide`, with drawn disasters, without a process."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable

import pytest

from tests.core.facts import EPOCHS
from tests.core.simulate import World, completes, daemon_started, environment, find, kinds, run_started, until
from tests.core.simulated_trainer import ACCURACY, SKIPPED, STEPS_PER_EPOCH
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.messages.vocabulary import EVENT_TYPES
from tolariad.core.state.run_state import RunState, fold

TOTAL = EPOCHS * STEPS_PER_EPOCH
KEEP_BEST = {"keep_best": True, "metric": "accuracy", "better": m.Better.MAX}
BEST_EPOCH = max(ACCURACY, key=ACCURACY.__getitem__)
ENDS = {
    m.CheckpointBegun: (m.CheckpointCommitted, m.CheckpointAborted),
    m.ComparisonBegun: (m.StatesCompared, m.ComparisonAborted),
    m.CheckpointDeletionBegun: (m.CheckpointDeleted, m.CheckpointDeletionAborted),
    m.RerunBegun: (m.RerunFinished, m.RerunAborted),
    m.RollbackBegun: (m.RolledBack, m.RollbackAborted),
    m.PruneCycleBegun: (m.PruneAnalyzed, m.PruneCycleFailed, m.PruneCycleCancelled),
    m.SnapshotBegun: (m.SnapshotTaken, m.SnapshotAborted),
    m.ValidationBegun: (m.ValidationFinished, m.ValidationAborted),
}


def test_an_undisturbed_run_completes_with_a_checkpoint_before_the_first_update():
    """Start, checkpoint 0, epochs, the last checkpoint, RunCompleted, exit 0."""
    world = World(0)
    world.run()

    names = kinds(world)
    assert world.exit == 0
    assert world.state.run.phase is st.Phase.COMPLETED
    assert [event.step for event in find(world, m.StepCompleted)] == list(range(1, TOTAL + 1))
    assert names.index("CheckpointCommitted") < names.index("StepCompleted")
    assert len(find(world, m.EpochFinished)) == EPOCHS
    assert world.state.checkpoints.newest is not None
    assert world.state.checkpoints.newest.reason is m.CheckpointReason.END


def troubled(world: World, also: Callable[[], object] = lambda: None) -> World:
    """Do three hundred drawn things with `also` before each, then one death, then the rest: every begun operation has
    one end.
    """
    for _ in range(300):
        if world.exit is not None:
            break
        also()
        world.anything()
    world.restart_daemon()
    assert_every_begun_has_one_end(world)
    world.command(m.Resume())
    world.run()
    assert_every_begun_has_one_end(world)
    return world


def test_disasters_change_nothing_of_what_training_did(seed):
    """The digest of any disturbed run that completes equals that of the undisturbed one; every begun has one end."""
    calm = World(0)
    calm.run()
    completed = 0
    for offset in range(40):
        world = troubled(World(seed + offset, deaths_max=50, **KEEP_BEST))
        if world.state.run.phase is st.Phase.COMPLETED:
            completed += 1
            assert world.state.progress.digest == calm.state.progress.digest, f"seed {seed + offset}"
            assert world.state.progress.skipped == SKIPPED
            assert kept(world) == (BEST_EPOCH + 1, 0), f"seed {seed + offset}"
    print(f"{completed} of 40 disturbed runs completed")
    assert completed >= 30


def kept(world: World) -> tuple[int, int] | None:
    """Where the checkpoint that is kept as the best one goes on: epoch and batch."""
    checkpoints = world.state.checkpoints
    entry = next((one for one in checkpoints.catalogue if one.id == checkpoints.best), None)
    return (entry.epoch, entry.batch) if entry else None


def test_everything_that_begins_has_its_ends_in_the_table():
    """A new kind of beginning that nobody ends would else be looked at by no test."""
    assert {kind for name, kind in EVENT_TYPES.items() if name.endswith("Begun")} == set(ENDS)


def assert_every_begun_has_one_end(world: World) -> None:
    """Also after a restart: what was open got its end, and no end came twice."""
    for begun, ends in ENDS.items():
        count = Counter(isinstance(event, begun) for event in world.events)[True]
        ended = sum(isinstance(event, ends) for event in world.events)
        assert count == ended, f"{begun.__name__}: {count} begun, {ended} ended"
    ids = Counter(event.id for event in world.events if isinstance(event, ENDS[m.CheckpointBegun]))
    assert all(times == 1 for times in ids.values())


def test_a_restart_reruns_from_the_newest_checkpoint_and_records_each_step_once():
    """The daemon dies in the middle of an epoch."""
    world = until(World(0), 6)
    world.restart_daemon()
    world.run()

    began = find(world, m.RerunBegun)[0]
    assert (began.first, began.last) == (5, 6)
    assert find(world, m.RerunFinished)[0].compared == 2
    assert [event.step for event in find(world, m.StepCompleted)] == list(range(1, TOTAL + 1))
    assert find(world, m.TrainerDied)[0].reason is m.DeathReason.WITH_DAEMON
    assert world.state.trainer.deaths_total == 0


def test_a_skipped_step_after_the_last_applied_one_is_run_again_and_recorded_once():
    """The daemon dies between the skip and the next update, at each skipped batch."""
    calm = World(0)
    calm.run()
    for place in range(1, SKIPPED + 1):
        world = World(0)
        while world.state.progress.skipped < place:
            world.tick()
        world.restart_daemon()
        world.run()

        reruns = find(world, m.RerunFinished)
        assert sum(event.skipped for event in reruns) >= 1, place
        assert [event.compared for event in reruns] == [event.last - event.first + 1 for event in reruns]
        assert len(find(world, m.StepSkipped)) == SKIPPED
        assert world.state.progress.digest == calm.state.progress.digest
        assert_every_begun_has_one_end(world)


def test_any_nan_is_one_nan_in_the_state():
    """Its bits are the processor's: two runs that differ in nothing else are equal."""
    quiet, signed = (
        struct.unpack("<d", bits)[0] for bits in (b"\0" * 6 + b"\xf8\x7f", b"\1" + b"\0" * 5 + b"\xf8\xff")
    )
    assert struct.pack("<d", quiet) != struct.pack("<d", signed)
    at = {"step": 1, "epoch": 1, "batch": 1}
    for kind, fields in (
        (m.StepCompleted, {"lr": 0.1, "rates": 1}),
        (m.StepSkipped, {"reason": m.SkipReason.OVERFLOW}),
    ):
        digests = {
            fold(RunState(), [kind(**at, loss=nan, grad_norm=nan, **fields)]).progress.digest for nan in (quiet, signed)
        }
        assert len(digests) == 1, kind


def test_five_deaths_in_a_row_fail_the_run_and_a_step_in_between_forgives_them():
    """Back-off 1, 2, 4, 8, as others died a moment ago; the fifth ends the run with exit code 70."""
    world = until(World(0), 1)
    for _ in range(4):
        world.crash_trainer()
        until(world, world.state.progress.step + 1)
    assert world.state.run.phase is st.Phase.RUNNING

    for _ in range(5):
        world.crash_trainer()
        world.tick()
        world.tick()
    died = find(world, m.TrainerDied)[-5:]
    assert [event.restart_s for event in died] == [1.0, 2.0, 4.0, 8.0, None]
    assert (world.state.run.phase, world.exit) == (st.Phase.FAILED, 70)

    world.restart_daemon()
    assert world.exit == 70
    world.restart_daemon(m.StartMode.RETRY)
    completes(world)


@pytest.mark.parametrize(
    ("phase", "mode", "after", "exit_code", "trains"),
    [
        (st.Phase.STOPPED, m.StartMode.EXPLICIT, st.Phase.RECOVERING, None, True),
        (st.Phase.STOPPED, m.StartMode.ACTIVATED, st.Phase.STOPPED, None, False),
        (st.Phase.PAUSED, m.StartMode.EXPLICIT, st.Phase.PAUSED, None, False),
        (st.Phase.PAUSED, m.StartMode.ACTIVATED, st.Phase.PAUSED, None, False),
        (st.Phase.RUNNING, m.StartMode.EXPLICIT, st.Phase.RECOVERING, None, True),
        (st.Phase.RUNNING, m.StartMode.ACTIVATED, st.Phase.RECOVERING, None, True),
        (st.Phase.COMPLETED, m.StartMode.EXPLICIT, st.Phase.COMPLETED, 0, False),
        (st.Phase.COMPLETED, m.StartMode.ACTIVATED, st.Phase.COMPLETED, None, False),
        (st.Phase.FAILED, m.StartMode.EXPLICIT, st.Phase.FAILED, 70, False),
        (st.Phase.FAILED, m.StartMode.ACTIVATED, st.Phase.FAILED, None, False),
        (st.Phase.FAILED, m.StartMode.RETRY, st.Phase.RECOVERING, None, True),
        (st.Phase.FROZEN, m.StartMode.EXPLICIT, st.Phase.FROZEN, None, False),
    ],
)
def test_a_start_does_what_the_phase_found_asks_for(phase, mode, after, exit_code, trains):
    """The table of the control interface, row by row."""
    world = until(World(0), 3)
    if phase is st.Phase.STOPPED:
        world.command(m.Stop())
        world.run()
    elif phase is st.Phase.PAUSED:
        world.command(m.Pause())
        world.run(10)
    elif phase is st.Phase.COMPLETED:
        world.run()
    elif phase is st.Phase.FAILED:
        report = m.SetupRefusedReport(why="no")
        world.give(m.ReportReceived(incarnation=1, report=report))
        world.run()
    elif phase is st.Phase.FROZEN:
        world.give(m.TrainerStuck(incarnation=1, pid=99, state="D", waited_s=30.0))
    assert world.state.run.phase is phase

    world.restart_daemon(mode)

    assert world.state.run.phase is after
    assert world.exit == exit_code
    assert bool(world.due) is trains


@pytest.mark.parametrize(
    ("grade", "threads_after", "fails"),
    [("strict", 1, True), ("warn", 1, False), ("strict", 2, False)],
)
def test_a_rerun_that_differs_stops_the_run_only_where_it_cannot_be_explained(grade, threads_after, fails):
    """Strict determinism and an equal execution context; otherwise it is recorded and the run goes on."""
    world = World(0)
    world.environment = environment(determinism=grade)
    until(world, 6)
    world.environment = environment(determinism=grade, threads=threads_after)
    world.restart_daemon()
    while world.state.progress.rerun is None:
        world.tick()
    difference = m.Difference(step=5, field="loss", expected="1.0", found="2.0")
    world.trainer.step = world.state.progress.rerun.last
    world.trainer.script.clear()
    report = m.RerunReport(first=5, last=6, compared=2, first_difference=difference)
    world.give(m.ReportReceived(incarnation=world.trainer.incarnation, report=report))
    world.run()

    assert find(world, m.RerunFinished)[0].first_difference == difference
    assert bool(find(world, m.RerunDiverged)) is fails
    assert (world.state.run.phase is st.Phase.FAILED) is fails
    assert world.exit == (70 if fails else 0)
    said = "step 5 came out differently when it was run again: the loss was 1.0, is 2.0." in world.state.run.why
    assert said is fails
    assert ("The usual causes are random numbers without a seed" in world.state.run.why) is fails


def rerun_that_differs(world, field="loss"):
    """The daemon starts again, and step 5 comes out differently."""
    world.restart_daemon(m.StartMode.RETRY)
    while world.state.progress.rerun is None:
        world.tick()
    difference = m.Difference(step=5, field=field, expected="1.0", found="2.0")
    world.trainer.step = world.state.progress.rerun.last
    world.trainer.script.clear()
    report = m.RerunReport(first=5, last=6, compared=2, first_difference=difference)
    world.give(m.ReportReceived(incarnation=world.trainer.incarnation, report=report))


def test_a_run_whose_data_do_not_repeat_themselves_goes_on_with_the_sentence():
    """What was found at the first start explains each difference; it is recorded once."""
    world = World(0)
    world.environment = environment(determinism="strict")
    until(world, 6)
    why = "item 0 differs when it is read again"
    for _ in range(2):
        report = m.InexactDataReport(why=why)
        world.give(m.ReportReceived(incarnation=world.trainer.incarnation, report=report))
    rerun_that_differs(world, "data")
    world.run()

    assert [event.why for event in find(world, m.InexactDataFound)] == [why]
    assert find(world, m.RerunFinished)[0].expected == why
    assert not find(world, m.RerunDiverged)
    assert (world.state.run.phase, world.exit) == (st.Phase.COMPLETED, 0)


def test_nothing_fails_for_good_because_it_came_out_differently():
    """The first time the run fails, with a sentence for other data; a retry goes on, and later differences too."""
    world = World(0)
    world.environment = environment(determinism="strict")
    until(world, 6)
    rerun_that_differs(world, "data")
    world.run()
    assert world.state.run.phase is st.Phase.FAILED
    assert "step 5: other data" in world.state.run.why
    assert "--retry goes on" in q.way_on(world.state.run.failure, in_program=False)
    rerun_that_differs(world)
    world.run()
    assert find(world, m.RerunFinished)[-1].expected == "step 5 came out differently before"
    assert (world.state.run.phase, world.exit) == (st.Phase.COMPLETED, 0)
    assert len(find(world, m.RerunDiverged)) == 1


def test_no_run_keeps_more_reasons_than_it_may():
    """The first ones stay; the journal has all."""
    world = until(World(0), 3)
    for number in range(2 * st.INEXACT_MAX):
        report = m.InexactDataReport(why=f"reason {number}")
        world.give(m.ReportReceived(incarnation=world.trainer.incarnation, report=report))
    world.give(m.ReportReceived(incarnation=world.trainer.incarnation, report=m.Told(event=m.DataNoted(why="a note"))))
    assert world.state.progress.inexact == tuple(f"reason {number}" for number in range(st.INEXACT_MAX))
    assert [event.why for event in find(world, m.DataNoted)] == ["a note"]


def test_what_a_trainer_tells_is_recorded_with_the_stamp_of_the_kernel():
    """It cannot say when, why or by whose order something was: an actor would make an order of it."""
    world = until(World(0), 3)
    told = m.DataNoted(why="a note", wall=1, mono=1, cause=2, root=2, actor=m.Actor(uid=0, program="tolaria"))
    world.give(m.ReportReceived(incarnation=world.trainer.incarnation, report=m.Told(event=told)))
    (noted,) = find(world, m.DataNoted)

    assert (noted.why, noted.actor, noted.cause) == ("a note", None, 0)
    assert noted.wall > 1
    assert noted.mono > 1


def test_a_checkpoint_that_cannot_be_used_gives_way_to_the_next_older_and_the_last_one_fails_the_run():
    """CheckpointRejected names it; nothing is started from a damaged one, and without any the exit code is 65."""
    world = until(World(0), 6)
    world.restart_daemon()
    ids = [entry.id for entry in reversed(world.state.checkpoints.catalogue)]
    world.tick()
    world.tick()
    for id_ in ids:
        report = m.CheckpointUnusableReport(id=id_, file="model.safetensors", why="hash")
        world.give(m.ReportReceived(incarnation=world.state.trainer.incarnation, report=report))
    world.run()

    assert [event.id for event in find(world, m.CheckpointRejected)] == ids
    assert (world.state.run.phase, world.exit) == (st.Phase.FAILED, 65)


def test_a_step_out_of_order_ends_its_trainer_and_is_not_recorded():
    """A report that contradicts the journal is rejected."""
    world = until(World(0), 3)
    report = m.StepReport(step=9, epoch=1, batch=4, loss=1.0, grad_norm=1.0, lr=0.1, rates=1)
    world.give(m.ReportReceived(incarnation=1, report=report))
    world.run()

    assert "step 9 was reported, but step 4 comes next" in find(world, m.ReportRefused)[0].why
    assert [event.step for event in find(world, m.StepCompleted)] == list(range(1, TOTAL + 1))


def test_every_event_has_a_cause_before_it_and_the_root_of_its_cause():
    """The chain that `why` walks, over a disturbed run."""
    world = World(11, deaths_max=50)
    for _ in range(400):
        world.anything()
    for seq, event in enumerate(world.events, 1):
        assert event.cause < seq
        if event.cause:
            assert event.root == world.events[event.cause - 1].root
        else:
            assert event.root == seq


def test_the_phase_table_is_total_and_ends_are_ends():
    """Every pair gives a phase; only a start, a retry, a resume, a gap or a pause kept over a stop leaves an end."""
    leaves = {"GapRecorded", "RunStarted", "RunRetried", "RunResumed", "RunPaused", "RunFailed"}
    for kind in EVENT_TYPES.values():
        for phase in st.Phase:
            after = st.phase_after(phase, kind)
            assert isinstance(after, st.Phase)
            if phase in st.TERMINAL and after is not phase:
                assert kind.__name__ in leaves
    reached = {to for row in st.TRANSITIONS.values() for to in row.values()}
    assert reached == set(st.Phase)


def test_a_new_run_that_never_trained_is_started_afresh():
    """A daemon that died before its first trainer was ready."""
    world = World(0)
    world.give(m.Opened(mode=m.StartMode.EXPLICIT, facts=(daemon_started(),)))
    world.run()

    assert world.state.run.phase is st.Phase.COMPLETED
    assert find(world, m.RunStarted) == [world.events[0]]
    assert run_started().name == world.state.run.name


@pytest.mark.parametrize(
    ("sync", "step_ms", "waits"),
    [("step", 0.1, False), ("batch", 100.0, True), ("auto", 1.0, True), ("auto", 4.9, True), ("auto", 5.1, False)],
)
def test_step_reports_wait_for_company_only_where_the_configuration_says_so(sync, step_ms, waits):
    """`auto` looks at the steps of late; before it has seen a window of them it lets none wait."""
    events = [run_started(sync=sync)]
    events += [
        m.StepCompleted(
            step=n, epoch=1, batch=n, loss=1.0, grad_norm=1.0, lr=0.1, rates=1, mono=10**9 + int(n * step_ms * 1e6)
        )
        for n in range(1, 600)
    ]
    events.insert(1, m.TrainingStarted(incarnation=1, step=0, mono=10**9))

    assert q.may_wait(fold(RunState(), events[:100])) is (sync == "batch")
    assert q.may_wait(fold(RunState(), events)) is waits
