"""SIGUSR1 and SIGUSR2 in a program: what the configuration says, and the program's own handlers stay its own."""

from __future__ import annotations

import os
import signal

import pytest

from tests.library.small import EPOCHS, STEPS_PER_EPOCH, made, train
from tests.recorded import events_of, of
from tolariad.core import messages as m
from tolariad.trainer.tasks.given import GivenTask

USERS = (signal.SIGUSR1, signal.SIGUSR2)


def sends(at: int, *numbers: int):
    """A hook that sends signals to this process after step `at`."""

    def hook(step: int) -> None:
        if step == at:
            for one in numbers:
                os.kill(os.getpid(), one)

    return hook


def test_a_checkpoint_is_taken_and_the_training_goes_on(tmp_path):
    """By default both signals mean one, each time. Afterwards the default action is back."""
    result = train(tmp_path / "run", sends(5, *USERS))
    events = events_of(tmp_path / "run")
    orders = of(events, m.CheckpointRequested)

    assert (result.phase, result.steps) == ("completed", EPOCHS * STEPS_PER_EPOCH)
    assert [(one.actor.program, one.actor.reason) for one in orders] == [("signal", "SIGUSR1"), ("signal", "SIGUSR2")]
    # At the next boundary at which the order has come: on a busy machine that is some steps later.
    ordered = {one.id for one in of(events, m.CheckpointBegun) if one.reason is m.CheckpointReason.ORDERED}
    taken = [one.step for one in of(events, m.CheckpointCommitted) if one.id in ordered]
    assert taken
    assert all(5 <= step < result.steps for step in taken)
    assert of(events, m.StopRequested) == []
    assert [signal.getsignal(one) for one in USERS] == [signal.SIG_DFL] * 2


def test_a_stop_ends_the_program_as_sigterm_does(tmp_path, caplog):
    """With a checkpoint at the boundary, and exit code 143. A second one changes nothing. A start goes on."""
    tolaria = made(tmp_path / "run", signals={"USR1": "stop"})
    with pytest.raises(SystemExit) as ended:
        train(tmp_path / "run", sends(5, signal.SIGUSR1, signal.SIGUSR1), tolaria=tolaria)
    events = events_of(tmp_path / "run")
    (stopped,) = of(events, m.RunStopped)

    assert ended.value.code == 143
    assert [one.signal for one in of(events, m.StopRequested)] == ["SIGUSR1"]
    assert of(events, m.CheckpointCommitted)[-1].step == stopped.step
    assert any(line.startswith("SIGUSR1: the run stops") for line in caplog.messages)
    assert train(tmp_path / "run", tolaria=tolaria).phase == "completed"


def test_a_programs_own_handler_gets_its_signals(tmp_path):
    """Those of Lightning or submitit, for example, or one that ignores."""
    own = []
    handlers = {signal.SIGUSR1: lambda *_: own.append(1), signal.SIGUSR2: signal.SIG_IGN}
    before = {one: signal.signal(one, handler) for one, handler in handlers.items()}
    try:
        result = train(tmp_path / "run", sends(5, *USERS), tolaria=made(tmp_path / "run", signals={"USR1": "stop"}))
        assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)

    assert (result.phase, own) == ("completed", [1])
    assert of(events_of(tmp_path / "run"), m.CheckpointRequested) == []


def test_a_forked_child_does_not_die_of_a_warning(tmp_path):
    """A scheduler sends it to every process of a job: a loader's worker must go on, and orders nothing."""
    codes = []

    def in_a_child(step):
        if step == 3 and not codes:
            child = os.fork()
            if child == 0:
                for one in USERS:
                    os.kill(os.getpid(), one)
                os._exit(7)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    assert train(tmp_path / "run", in_a_child).phase == "completed"
    assert codes == [7]
    assert of(events_of(tmp_path / "run"), m.CheckpointRequested) == []


def test_a_warning_while_the_training_is_built_waits(tmp_path, monkeypatch):
    """The default action would end the program. A stop is recorded after the start of the run."""
    built = GivenTask.model

    def model(self, cfg):
        os.kill(os.getpid(), signal.SIGUSR2)
        return built(self, cfg)

    monkeypatch.setattr(GivenTask, "model", model)
    with pytest.raises(SystemExit) as ended:
        train(tmp_path / "run", tolaria=made(tmp_path / "run", signals={"USR2": "stop"}))

    assert ended.value.code == 143
    assert len(of(events_of(tmp_path / "run"), m.RunStopped)) == 1
