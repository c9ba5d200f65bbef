"""The recorder dies, hangs or is lost: the program makes no update that is not recorded, and goes on by itself."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from journal import Verdict, verify
from tests.library.inside import ordered, pid_of
from tests.library.loops.programs import Loop
from tests.library.small import EPOCHS, STEPS_PER_EPOCH, bits, made, network, train
from tests.recorded import events_of, of, sound
from tests.waiting import wait_for
from tolariad import failpoints
from tolariad.attach import spawn
from tolariad.core import messages as m
from tolariad.daemon import program
from tolariad.library import recorder
from tolariad.library.failed import RunFailed
from tolariad.supervisor.cpu_affinity import cores_of_the_machine

SAID = "The recorder ended without a word"


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The bits of the undisturbed run."""
    model = network()
    train(tmp_path_factory.mktemp("calm") / "run", model=model)
    return bits(model)


class Kills:
    """A hook that kills the recorder after these steps, each once."""

    def __init__(self, *steps: int, number: int = signal.SIGKILL):
        self.steps, self.number, self.tolaria = list(steps), number, None

    def __call__(self, step):
        if self.steps and step == self.steps[0]:
            self.steps.pop(0)
            os.kill(pid_of(self.tolaria), self.number)


def trained(run_dir, hook, **options):
    """Train with the hook, and return the result and the bits."""
    hook.tolaria, model = made(run_dir, **options), network()
    return train(run_dir, hook, model=model, tolaria=hook.tolaria), bits(model)


@pytest.mark.parametrize("sync", ["step", "batch"])
def test_a_killed_recorder_is_replaced_and_the_run_ends_with_the_same_bits(tmp_path, calm, caplog, sync):
    """Twice in one call. Each is said in a line, and each death of a trainer is recorded once."""
    hook = Kills(11, 19)
    options = made(tmp_path)._config["tolaria"]["journal"]
    result, found = trained(tmp_path / "run", hook, journal={**options, "sync": sync})
    events = sound(tmp_path / "run")

    assert (result.phase, result.steps, found) == ("completed", EPOCHS * STEPS_PER_EPOCH, calm)
    assert hook.steps == []
    assert [one.reason for one in of(events, m.TrainerDied)] == [m.DeathReason.WITH_DAEMON] * 2
    assert len(of(events, m.DaemonStarted)) == 3
    assert len([line for line in caplog.messages if line.startswith(SAID)]) == 2


def test_a_loop_of_ones_own_is_sent_back_as_by_a_rollback(tmp_path):
    """Its epoch's code runs to its end first; what is kept comes back."""
    undisturbed = Loop(tmp_path / "calm").go()
    steps = [5, 14]

    def after(loop):
        if steps and loop.step == steps[0]:
            steps.pop(0)
            os.kill(pid_of(loop.tolaria), signal.SIGKILL)

    loop = Loop(tmp_path / "run", after).go()

    assert loop.run.result.phase == "completed"
    assert loop.bits == undisturbed.bits
    assert len(loop.seen) > EPOCHS
    assert verify(tmp_path / "run" / "journal").verdict is Verdict.CLEAN


@pytest.mark.sample(2)
@pytest.mark.parametrize("point", ["replay:1", "commit:1", "commit:2", "commit:14", "commit:40", "removal:1"])
def test_a_recorder_that_is_killed_at_any_point_costs_no_bit(tmp_path, calm, monkeypatch, point):
    """Before and after the start of the run is recorded, too."""
    (tmp_path / "token").touch()
    monkeypatch.setenv(failpoints.VARIABLE, f"{point}@{tmp_path / 'token'}")
    spawn.end_idle()
    model = network()
    config = {"checkpoint": {"min_gap_s": 0, "keep_last": 1, "keep_days": 0}}
    result = train(tmp_path / "run", model=model, tolaria=made(tmp_path / "run", **config))

    assert not (tmp_path / "token").exists()
    assert (result.phase, bits(model)) == ("completed", calm)


def test_a_recorder_that_dies_again_and_again_ends_the_call(tmp_path, monkeypatch):
    """Without a new durable step it is given up; what is durable stays."""
    with monkeypatch.context() as patched:
        patched.setenv(failpoints.VARIABLE, "commit:3")
        spawn.end_idle()
        with pytest.raises(RunFailed, match="without a word"):
            train(tmp_path / "run")
    assert train(tmp_path / "run").phase == "completed"


def test_a_recorder_that_hangs_ends_with_the_second_interrupt(tmp_path, monkeypatch):
    """Its disk does not answer, for example. The program waits at its gate, and kills it at the end."""
    monkeypatch.setattr(recorder, "_END_S", 0.3)
    hook, killed, every = Kills(10, number=signal.SIGSTOP), [], os.sched_getaffinity(0)
    # The first ^C stops in order, the second one raises.
    left = [signal.SIGINT] * 2

    def interrupted(step):
        hook(step)
        if step == 10:
            killed.append(pid_of(hook.tolaria))
            signal.setitimer(signal.ITIMER_REAL, 0.3, 0.3)

    before = signal.signal(signal.SIGALRM, lambda *_: left and signal.raise_signal(left.pop()))
    hook.tolaria = made(tmp_path / "run")
    try:
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "run", interrupted, tolaria=hook.tolaria)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert os.sched_getaffinity(0) == every
    assert not os.path.exists(f"/proc/{killed[0]}")  # noqa: PTH110
    assert len(of(events_of(tmp_path / "run"), m.StepCompleted)) >= 9
    assert train(tmp_path / "run").phase == "completed"


def test_a_stop_that_the_dead_recorder_did_not_record_is_asked_for_again(tmp_path, calm):
    """^C and the death of the recorder at once: the run stops all the same."""

    def hook(step):
        if step == 10:
            os.kill(pid_of(tolaria), signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(pid_of(tolaria), signal.SIGKILL)

    tolaria = made(tmp_path / "run")
    stopped = train(tmp_path / "run", hook, tolaria=tolaria)
    model = network()

    assert stopped.phase == "stopped"
    assert len(of(events_of(tmp_path / "run"), m.StopRequested)) == 1
    assert train(tmp_path / "run", model=model).phase == "completed"
    assert bits(model) == calm


def test_a_pause_outlives_the_recorder(tmp_path, calm):
    """An operator's word holds: the next recorder does not resume what it finds paused."""
    tolaria, model, orders = made(tmp_path / "run"), network(), []

    def kinds(kind):
        return of(events_of(tmp_path / "run"), kind)

    def operator():
        wait_for(lambda: kinds(m.RunPaused))
        os.kill(pid_of(tolaria), signal.SIGKILL)
        wait_for(lambda: len(kinds(m.DaemonStarted)) == 2)
        orders.append(len(kinds(m.RunResumed)))
        wait_for(lambda: ordered(tolaria, m.Resume()))

    def hook(step):
        if step == 10 and thread.ident is None:
            thread.start()
            assert ordered(tolaria, m.Pause())

    thread = threading.Thread(target=operator)
    result = train(tmp_path / "run", hook, model=model, tolaria=tolaria)
    thread.join()

    assert (result.phase, orders, len(kinds(m.RunResumed))) == ("completed", [0], 1)
    assert bits(model) == calm


def test_the_same_recorder_serves_one_call_after_the_other_and_one_that_was_killed_is_replaced(tmp_path):
    """Also after an exception of the program."""
    pids, tolaria = [], made(tmp_path / "run")

    def hook(step):
        pids.append(pid_of(tolaria))
        if step == 5 and len(set(pids)) == 1 and len(pids) == 5:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(tmp_path / "run", hook, tolaria=tolaria)
    assert train(tmp_path / "run", hook, tolaria=tolaria).phase == "completed"
    assert len(set(pids)) == 1
    os.kill(pids[0], signal.SIGKILL)
    tolaria = made(tmp_path / "other")
    assert train(tmp_path / "other", hook, tolaria=tolaria).phase == "completed"
    assert len(set(pids)) == 2


def test_cores_come_back_however_the_run_ends(tmp_path, monkeypatch):
    """The program's threads leave one to the recorder, if there are enough, and a killed one gives none back."""
    monkeypatch.setattr(program, "cores_of_the_machine", cores_of_the_machine)
    every, seen = os.sched_getaffinity(0), []

    def hook(step):
        seen.append(len(os.sched_getaffinity(0)))
        if step == 12:
            raise ZeroDivisionError

    killing = Kills(10)
    killing.tolaria = made(tmp_path / "run")
    with pytest.raises(ZeroDivisionError):
        train(tmp_path / "run", lambda step: (killing(step), hook(step)), tolaria=killing.tolaria)
    assert os.sched_getaffinity(0) == every
    if len(every) > 1:
        assert min(seen) == len(every) - 1


def test_cores_that_the_program_has_chosen_are_left_alone(tmp_path):
    """The recorder is woken then, and does not poll."""
    every, seen = os.sched_getaffinity(0), []
    if len(every) < 2:
        pytest.skip("there is nothing to choose")
    chosen = set(sorted(every)[:-1])
    os.sched_setaffinity(0, chosen)
    try:
        train(tmp_path / "run", lambda step: seen.append(os.sched_getaffinity(0)))
    finally:
        os.sched_setaffinity(0, every)
    (given,) = of(events_of(tmp_path / "run"), m.SchedulingRecorded)
    assert not given.polls
    assert "the program has chosen its cores itself" in given.why
    assert all(one == chosen for one in seen)


def test_a_journal_that_cannot_be_written_ends_the_call_with_the_reason(tmp_path, calm, monkeypatch):
    """The recorder says so with its last word; no further update is made. A disk that works goes on."""
    steps = []
    with monkeypatch.context() as patched:
        # The journal survives one failure: it begins another file.
        patched.setenv(failpoints.VARIABLE, ",".join(f"commit:{number}!EIO" for number in range(24, 30)))
        spawn.end_idle()
        with pytest.raises(RunFailed, match="Input/output error"):
            train(tmp_path / "run", steps.append)
        spawn.end_idle()
    durable = of(events_of(tmp_path / "run"), m.StepCompleted)[-1].step
    model = network()

    assert durable <= steps[-1] <= durable + 1
    assert train(tmp_path / "run", model=model).phase == "completed"
    assert bits(model) == calm
