"""A library run is live: every `tolaria` command that asks or orders something reaches it through its socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from tests import order_events
from tests.library.live_run import (
    LONG,
    PATIENCE_S,
    asked,
    in_a_process,
    is_reached,
    is_served,
    live,
    started,
    tolaria,
    train,
    wait_for,
)
from tests.library.small import CONFIG, EPOCHS, STEPS_PER_EPOCH, bits, data, made, network
from tests.recorded import events_of, of
from tolariad.core import messages as m
from tolariad.daemon.request import StartRefused
from tolariad.library.failed import RunFailed

THREAD = "tolaria-link"


@pytest.fixture(autouse=True)
def _a_place_of_its_own(tmp_path, monkeypatch, template):
    """Hide the runs of this machine. Commands are forks of the template, whose start takes seconds."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "x"))
    monkeypatch.delenv("TOLARIA_RUN", raising=False)


def status(run_dir, code=0):
    return json.loads(tolaria("status", run_dir, "--json", code=code))


def threads():
    return [one.name for one in threading.enumerate() if one.name == THREAD]


# -- asking ------------------------------------------------------------------------------------------------------------


def test_status_and_list_show_a_live_library_run(run_dir):
    """`status` says that it is the library's, and its process; without a name it is the only live run."""
    with live(run_dir):
        wait_for(lambda: asked(run_dir)["step"])
        shown, lines = json.loads(tolaria("status", "--json")), tolaria("status", run_dir).splitlines()
        (listed,) = (json.loads(line) for line in tolaria("list", "--json").splitlines())
        budgets = tolaria("status", "--budgets")
    assert (shown["live"], shown["served_by"], shown["pid"]) == (True, "library", os.getpid())
    assert shown["trainer"]["alive"]
    assert shown["trainer"]["heartbeat_step"] > 0
    assert lines[0] == f"run  running  (library, pid {os.getpid()}, {run_dir})"
    assert (listed["name"], listed["live"], listed["phase"]) == ("run", True, "running")
    assert "epoch_boundary" in budgets


def test_watch_and_events_follow_a_library_run_to_its_end(run_dir):
    """`watch` ends with the run's last state; `events --follow` shows a note that is written meanwhile."""
    with live(run_dir) as results:
        watching = started("watch", run_dir, "--json", "--interval", "0.1")
        following = started("events", run_dir, "-f", "-n", "0", "-t", "NoteAdded")
        assert json.loads(watching.stdout.readline())["served_by"] == "library"
        limit = time.monotonic() + PATIENCE_S
        reader = threading.Thread(target=lambda: heard.append(following.stdout.readline()), daemon=True)
        heard: list[str] = []
        reader.start()
        while not heard and time.monotonic() < limit:
            tolaria("note", "--dir", run_dir, "seen by a follower")
        following.kill()
        following.wait()
        tolaria("stop", run_dir)
        rest, _ = watching.communicate(timeout=60)
    assert "seen by a follower" in heard[0]
    assert watching.returncode == 0
    assert json.loads(rest.splitlines()[-1])["phase"] == results[0].phase == "stopped"


# -- ordering ----------------------------------------------------------------------------------------------------------


def test_pause_holds_the_program_and_resume_lets_it_go_on(run_dir):
    """No step is made between the two."""
    made = []
    with live(run_dir, made.append):
        wait_for(lambda: len(made) > 5)
        tolaria("pause", run_dir)
        paused, count = status(run_dir), len(made)
        time.sleep(0.3)
        assert (paused["phase"], len(made)) == ("paused", count)
        tolaria("resume", run_dir)
        wait_for(lambda: len(made) > count)
    events = events_of(run_dir)
    assert (len(of(events, m.RunPaused)), len(of(events, m.RunResumed))) == (1, 1)


def test_orders_act_on_a_library_run_as_on_a_daemon(run_dir):
    """note, checkpoint, lr set, extend, rollback and emergency: each is done, and by the user who gave it."""
    with live(run_dir) as results:
        wait_for(lambda: asked(run_dir)["step"] > 10)
        tolaria("note", "--dir", run_dir, "what I see")
        tolaria("checkpoint", run_dir, "--reason", "before lunch")
        tolaria("lr", "set", "default", "0.005", "--dir", run_dir)
        assert "after epoch 90000" in tolaria("extend", run_dir, "--epochs", "90000")
        assert "Rolled back from step" in tolaria("rollback", run_dir, "--yes")
        tolaria("emergency", "minor", run_dir)
        refused = tolaria("resume", run_dir, code=4)
        assert status(run_dir)["epochs"] == 90000
    events = events_of(run_dir)
    assert [one.text for one in of(events, m.NoteAdded)] == ["what I see"]
    assert {one.actor.uid for kind in (m.NoteAdded, m.EmergencyRaised) for one in of(events, kind)} == {os.getuid()}
    assert [one.order.value for one in of(events, order_events.acted(m.SetRate))] == [0.005]
    assert len(of(events, m.RolledBack)) == 1
    assert "WrongPhase" in refused
    assert results[0].phase == "stopped"


def test_a_stop_ends_train_with_a_checkpoint_and_the_next_call_goes_on(run_dir, tmp_path):
    """`train` returns as after ^C. The run then ends with the bits of one that was never stopped."""

    def hook(step):
        if step == 4:
            wait_for(lambda: of(events_of(run_dir), m.StopRequested))
            # A stop is recorded a moment before it is sent, and sent before a later order is answered.
            tolaria("note", "--dir", run_dir, "heard")

    with live(run_dir, hook, epochs=EPOCHS) as results:
        wait_for(lambda: asked(run_dir)["step"] > 2)
        assert "stop: done by RunStopped" in tolaria("stop", run_dir)
    (stopped,) = results
    assert stopped.phase == "stopped"
    assert of(events_of(run_dir), m.CheckpointCommitted)[-1].step == stopped.steps
    assert not is_reached(run_dir)
    assert status(run_dir, code=3)["live"] is False
    assert "not live" in tolaria("status", run_dir, code=3)
    tolaria("pause", run_dir, code=3)
    ours, calm = network(), network()
    assert train(run_dir, epochs=EPOCHS, model=ours, step_s=0).phase == "completed"
    train(tmp_path / "calm", epochs=EPOCHS, model=calm, step_s=0)
    assert bits(ours) == bits(calm)


def test_a_loop_of_ones_own_is_paused_sent_back_and_stopped(run_dir):
    """Its iterators obey the orders; the result says that the run was stopped.

    However late the orders come, the checkpoint of the first epoch is still there.
    """
    model, given, results = network(), [], []

    def work():
        loader = DataLoader(data(), 12, shuffle=True)
        run = made(run_dir, checkpoint={**CONFIG["tolaria"]["checkpoint"], "keep_last": 100_000}).run(
            model, None, loader
        )
        for _ in run.epochs(LONG):
            for x, y in run.batches():
                given.append(1)
                time.sleep(0.002)
                run.step(cross_entropy(model(x), y))
        results.append(run.result)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    wait_for(lambda: is_served(run_dir) and asked(run_dir)["step"] > 10)
    wait_for(lambda: any(one.step == STEPS_PER_EPOCH for one in of(events_of(run_dir), m.CheckpointCommitted)))
    tolaria("pause", run_dir)
    count = len(given)
    time.sleep(0.3)
    assert (asked(run_dir)["served_by"], asked(run_dir)["phase"], len(given)) == ("library", "paused", count)
    tolaria("resume", run_dir)
    assert "Rolled back from step" in tolaria("rollback", run_dir, "--epoch", "1", "--yes")
    assert "stop: done by RunStopped" in tolaria("stop", run_dir)
    thread.join(60)
    assert results[0].phase == "stopped"
    assert results[0].steps < len(given)
    assert not is_reached(run_dir)


def test_a_stop_at_once_takes_no_checkpoint(run_dir):
    """`stop --now` ends `train` before the next update."""
    with live(run_dir) as results:
        wait_for(lambda: asked(run_dir)["step"] > 20)
        tolaria("stop", run_dir, "--now", "--yes")
    events = events_of(run_dir)
    assert results[0].phase == "stopped"
    assert of(events, m.RunStopped)[-1].mode is m.StopMode.NOW
    assert m.CheckpointReason.STOP not in {begun.reason for begun in of(events, m.CheckpointBegun)}


def test_a_critical_emergency_ends_train_with_its_reason(run_dir):
    """The run is frozen; the program learns it by RunFailed, because `train` waits for no operator."""
    raised: list[BaseException] = []

    def work():
        try:
            train(run_dir)
        except RunFailed as error:
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    wait_for(lambda: is_served(run_dir) and asked(run_dir)["step"])
    tolaria("emergency", "critical", run_dir, "--yes")
    thread.join(60)
    assert "frozen" in str(raised[0])
    assert status(run_dir, code=3)["phase"] == "frozen"
    assert not is_reached(run_dir)


def test_an_interrupt_ends_a_paused_run(run_dir):
    """The main thread waits in a pause that was ordered through the socket, and ^C still stops the run."""

    def hook(step):
        if step == 5:
            tolaria("pause", run_dir, "--no-wait")
            threading.Thread(target=interrupt, daemon=True).start()

    def interrupt():
        wait_for(lambda: asked(run_dir)["phase"] == "paused")
        os.kill(os.getpid(), signal.SIGINT)

    result = train(run_dir, hook)
    assert result.phase == "stopped"
    assert len(of(events_of(run_dir), m.StepCompleted)) == result.steps


# -- programs ----------------------------------------------------------------------------------------------------------


def test_two_runs_one_after_the_other_each_have_a_socket(tmp_path):
    """The first run's socket is gone before the second run begins, and so is the thread that reads the link."""
    for name in ("first", "second"):
        assert threads() == []
        with live(tmp_path / name):
            assert status(tmp_path / name)["name"] == name
            assert [json.loads(line)["name"] for line in tolaria("list", "--json").splitlines()] == [name]
            assert threads() == [THREAD]
    assert threads() == []
    assert not is_reached(tmp_path / "second")


def test_a_notebook_with_a_running_event_loop_is_reached(run_dir):
    """`train` blocks the program's loop; the socket is served by another one, and the program's is as before."""
    seen = []

    def hook(step):
        if step == 5:
            seen.append(status(run_dir))

    async def cell():
        loop = asyncio.get_running_loop()
        later = asyncio.create_task(asyncio.sleep(0, "later"))
        result = train(run_dir, hook, epochs=EPOCHS, step_s=0)
        return result.phase, await later, asyncio.get_running_loop() is loop

    assert asyncio.run(cell()) == ("completed", "later", True)
    assert (seen[0]["served_by"], seen[0]["phase"]) == ("library", "running")


def test_an_exception_of_the_program_removes_the_socket(run_dir):
    """It comes to the caller; no file and no thread is left."""

    def hook(step):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(run_dir, hook)
    assert not is_reached(run_dir)
    assert threads() == []
    assert list((run_dir.parent / "x" / "tolaria").iterdir()) == []


def test_another_process_may_not_train_in_the_same_folder(run_dir):
    """It is refused by the lock, and the live run keeps its socket."""
    with in_a_process(run_dir) as pid:
        with pytest.raises(StartRefused, match="another process runs"):
            train(run_dir)
        assert status(run_dir)["pid"] == pid


# -- without a socket --------------------------------------------------------------------------------------------------


def test_a_run_without_a_socket_is_asked_through_its_journal(run_dir):
    """`control.socket: false`: no file; orders are refused by name."""
    seen = []

    def hook(step):
        if step == 5:
            seen.extend((is_reached(run_dir), status(run_dir, code=3), tolaria("pause", run_dir, code=3)))

    assert train(run_dir, hook, epochs=EPOCHS, step_s=0, control={"socket": False}).phase == "completed"
    there, shown, refused = seen
    assert (there, shown["live"], shown["served_by"]) == (False, False, None)
    assert shown["phase"] == "running"
    assert "control.socket" in refused
    assert not of(events_of(run_dir), m.StopRequested)


@pytest.mark.parametrize("fault", ["no place", "unknown operator", "defect"])
def test_a_socket_that_cannot_be_served_is_said_once_and_the_run_goes_on(tmp_path, monkeypatch, caplog, fault):
    """The runtime folder is a file and the path too long; an operator is unknown; the server has a defect."""
    run_dir, operators = tmp_path / "run", None
    if fault == "no place":
        run_dir = tmp_path / ("long" * 30)
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "file"))
    elif fault == "unknown operator":
        operators = ["nobody-has-this-name"]
    else:
        monkeypatch.setattr("tolariad.daemon.live.ControlServer.start", None)
    result = train(run_dir, epochs=EPOCHS, step_s=0, control={"operators": operators} if operators else {})
    (said,) = [one.getMessage() for one in caplog.records if one.name == "tolariad.run"]
    assert "no control socket" in said
    assert "The training is not affected" in said
    assert result.phase == "completed"
    assert not is_reached(run_dir)
    assert threads() == []


def test_a_path_that_is_too_long_for_a_socket_has_a_link(tmp_path):
    """Commands find the run by its folder."""
    run_dir = tmp_path / ("long" * 30)
    with live(run_dir):
        # It is made when the socket is served already.
        wait_for((run_dir / "control.sock").is_symlink)
        assert status(run_dir)["live"]
    assert not (run_dir / "control.sock").is_symlink()


# -- forks and kills ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["fork", "worker"])
def test_a_child_that_outlives_the_run_does_not_keep_its_socket(run_dir, tmp_path, how):
    """After kill -9 the recorder notices the end, a watching client ends, and the run is not live."""
    connected, forked = tmp_path / "connected", tmp_path / "forked"

    def hook(step):
        if step == STEPS_PER_EPOCH // 2:
            wait_for(connected.exists)
        if step == STEPS_PER_EPOCH + STEPS_PER_EPOCH // 2:
            if how == "worker" or os.fork() == 0:
                # A forked child gets here after the handlers of the fork: it may be stopped now.
                forked.touch()
            time.sleep(600)

    with in_a_process(run_dir, hook, workers=int(how == "worker")) as pid:
        watching = started("watch", run_dir, "--json", "--interval", "0.1")
        watching.stdout.readline()
        connected.touch()
        wait_for(forked.exists)
        children = _children(pid)
        assert children
        for one in children:
            os.kill(one, signal.SIGSTOP)  # a worker looks whether its parent lives, and ends otherwise
        os.kill(pid, signal.SIGKILL)
        try:
            watching.communicate(timeout=60)
            begun = time.monotonic()
            shown = status(run_dir, code=3)
            assert time.monotonic() - begun < 8
            assert (shown["live"], shown["phase"]) == (False, "recovering")
            assert not is_reached(run_dir)
            with live(run_dir):
                assert status(run_dir)["pid"] == os.getpid()
        finally:
            for one in children:
                # A stopped worker whose parent has ended gets SIGHUP, in a group of its own.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one, signal.SIGKILL)
    assert not is_reached(run_dir)


def _children(pid):
    """The processes that this one has forked, without its recorder, which has a session of its own."""
    forked = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()]
    return [one for one in forked if os.getsid(one) != one]
