"""The program dies: its recorder writes down how, and ends. Then the next start goes on."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal

import pytest

from journal import JournalMissing
from tests.library.inside import pid_of
from tests.library.small import bits, made, network, train
from tests.recorded import events_of, of
from tests.waiting import wait_for
from tolariad.core import messages as m


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The bits of the undisturbed run."""
    model = network()
    train(tmp_path_factory.mktemp("calm") / "run", model=model)
    return bits(model)


def crash():
    ctypes.string_at(1)


# What a program does after step 12, and what is recorded of it: the reason, the signal, the exit code.
ENDS = {
    "kill -9": (lambda: os.kill(os.getpid(), signal.SIGKILL), (m.DeathReason.SIGNAL, "SIGKILL", None)),
    "a crash": (crash, (m.DeathReason.SIGNAL, "SIGSEGV", None)),
    "its terminal is closed": (lambda: os.kill(os.getpid(), signal.SIGHUP), (m.DeathReason.SIGNAL, "SIGHUP", None)),
    "_exit": (lambda: os._exit(7), (m.DeathReason.EXIT, "", 7)),
    "exec": (lambda: os.execv("/bin/sleep", ["sleep", "60"]), (m.DeathReason.EXIT, "", None)),
}


def deaths_in(run_dir):
    """The deaths of trainers that are recorded so far."""
    with contextlib.suppress(JournalMissing):
        return of(events_of(run_dir), m.TrainerDied)
    return []


@pytest.mark.parametrize("how", ENDS)
def test_the_end_of_a_program_is_recorded_with_its_cause(tmp_path, calm, how):
    """The recorder is gone after it, so the next start finds the run free and goes on to the same bits."""
    act, expected = ENDS[how]
    run_dir = tmp_path / "run"
    child = os.fork()
    if child == 0:
        try:
            # Whoever runs the tests may have ignored the latter (`nohup`).
            for one in (signal.SIGSEGV, signal.SIGHUP):
                signal.signal(one, signal.SIG_DFL)
            train(run_dir, lambda step: act() if step == 12 else None)
        finally:
            os._exit(1)
    # Its own parent does not reap it yet: before Linux 6.15 only a zombie tells its cause.
    (died,) = wait_for(lambda: deaths_in(run_dir))
    if how == "exec":
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)

    assert (died.reason, died.signal, died.exit_code) == expected
    assert died.step >= 11
    assert died.in_program
    model = network()
    assert train(run_dir, model=model).phase == "completed"
    assert bits(model) == calm
    assert of(events_of(run_dir), m.TrainerDied) == [died]


def test_a_program_and_its_recorder_that_die_at_once_are_resumed(tmp_path, calm):
    """As in a control group or a container. The next start records that the trainer ended with its daemon."""
    run_dir = tmp_path / "run"
    tolaria = made(run_dir)
    child = os.fork()
    if child == 0:

        def end(step):
            if step == 12:
                os.kill(pid_of(tolaria), signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            train(run_dir, end, tolaria=tolaria)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    model = network()

    assert train(run_dir, model=model).phase == "completed"
    assert bits(model) == calm
    assert [one.reason for one in deaths_in(run_dir)] == [m.DeathReason.WITH_DAEMON]


def test_a_sigterm_to_both_is_one_stop(tmp_path, calm):
    """A scheduler or a service manager signals every process of a job."""

    def terminate(step):
        if step == 10:
            os.kill(pid_of(tolaria), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)

    tolaria = made(tmp_path / "run")
    with pytest.raises(SystemExit) as ended:
        train(tmp_path / "run", terminate, tolaria=tolaria)
    events = events_of(tmp_path / "run")
    model = network()

    assert ended.value.code == 143
    assert [one.mode for one in of(events, m.StopRequested)] == [m.StopMode.GRACEFUL]
    assert of(events, m.CheckpointCommitted)[-1].step == of(events, m.RunStopped)[0].step
    assert train(tmp_path / "run", model=model).phase == "completed"
    assert bits(model) == calm
