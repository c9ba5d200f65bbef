"""The receivers of a run's telemetry: what they get, what a reload changes, and that their faults end nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import signal

import pytest
from msgspec.structs import replace

from tests.daemon.harness import SETS, is_gone, of_type
from tests.waiting import wait_for
from tolariad.core import messages as m
from tolariad.core.calc.settings.model import Settings
from tolariad.core.calc.settings.receivers import Notify, Telemetry
from tolariad.core.state.run_state import RunState
from tolariad.daemon.receivers import Receivers
from tolariad.daemon.secret import SecretMissing, read_secret
from tolariad.kernel import Published

CONFIG = """tolaria:
  task: digits
  epochs: {epochs}
  journal: {{segment_bytes: 1000000}}
  notify: {{command: '{command}', events: [{events}]}}
"""


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_command_gets_the_events_that_it_asks_for_until_the_end(start, run_dir, tmp_path):
    """Each of them once, in order, the last one too: the daemon's end waits for it."""
    out = tmp_path / "out"
    command = f"notify.command=cat >> {out}; echo >> {out}"
    sets = [*SETS, command, "notify.events=[RunStarted, EpochFinished, RunCompleted]"]
    daemon = start(sets=sets)
    assert daemon.wait() == 0, daemon.stderr

    got = lines(out)
    assert [one["event"] for one in got] == ["RunStarted", *["EpochFinished"] * 3, "RunCompleted"]
    (completed,) = of_type(run_dir, m.RunCompleted)
    assert got[-1]["phase"] == "completed"
    assert got[-1]["run"] == run_dir.name
    assert completed.wall


def test_a_command_that_fails_changes_nothing_of_the_run(start, run_dir):
    """The run ends as without it, and what was lost is said."""
    daemon = start(sets=[*SETS, "notify.command=exit 3", "notify.events=[EpochFinished]"])
    assert daemon.wait() == 0, daemon.stderr

    assert len(of_type(run_dir, m.EpochFinished)) == 3
    assert "Telemetry cannot be sent to notify.command: `exit 3` ended with code 3" in daemon.stderr


async def test_a_command_that_hangs_is_killed_at_the_end(tmp_path, monkeypatch, caplog):
    """The daemon's end waits for a stated time; nothing is left of the command then."""
    monkeypatch.setattr("tolariad.daemon.receivers._END_S", 0.2)
    (tmp_path / "logs").mkdir()
    receivers = Receivers(tmp_path, bytes(16))
    command = f"echo $$ > {tmp_path}/pid; exec sleep 1000"
    receivers.configure(Settings(notify=Notify(command=command, events=("RunFrozen",))))
    receivers.publish(Published(RunState(), ((1, m.RunFrozen(why="x")), (2, m.DiskLow(free=1, floor=2))), (), None))
    await asyncio.to_thread(wait_for, lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    with caplog.at_level(logging.WARNING):
        await receivers.close()
    pid = int((tmp_path / "pid").read_text())
    await asyncio.to_thread(wait_for, lambda: is_gone(pid))

    assert "1 telemetry messages to notify.command were not sent" in caplog.text


async def test_conservative_mode_thins_the_bus_and_not_the_notifications(tmp_path, monkeypatch):
    """One step in ten is queued for the bus; everything that was asked for by name is queued."""
    monkeypatch.setattr("tolariad.daemon.receivers._END_S", 0.01)
    (tmp_path / "logs").mkdir()
    receivers = Receivers(tmp_path, bytes(16))
    notify = Notify(command="exit 0", events=("EpochFinished",))
    receivers.configure(Settings(notify=notify, telemetry=Telemetry(bus_url="unix:///nowhere")))
    step = m.StepCompleted(step=1, epoch=1, batch=1, loss=1.0, grad_norm=1.0, lr=0.1, rates=1)
    epoch = m.EpochFinished(epoch=1, step=1, steps=1, train_loss=1.0, seconds=1.0)
    state = RunState()
    for _ in range(2):
        receivers.publish(Published(state, ((1, step),) * 20 + ((2, epoch),) * 10, (), None))
        state = replace(state, stability=replace(state.stability, since=5))
    counts = {one.to: (one.waiting, one.thinned) for one in receivers.status()}
    await receivers.close()

    # Before the mode 20 steps, 10 epochs and their 10 spans, in it 4 of these 40.
    assert counts == {"notify.command": (20, 0), "telemetry.bus": (44, 36)}


async def test_a_defect_of_a_receiver_is_said_once(tmp_path, monkeypatch, caplog):
    """The recorder's thread goes on; a defect that comes with each step does not fill the log."""
    monkeypatch.setattr("tolariad.daemon.receivers._END_S", 0.01)
    receivers = Receivers(tmp_path, bytes(16))
    receivers.configure(Settings(telemetry=Telemetry(bus_url="unix:///nowhere")))
    turn = Published(RunState(), ((1, m.RunFrozen(why="x")),), (), None)

    def failing(why: str):
        def message_of(*_: object, **__: object):
            raise ValueError(why)

        return message_of

    for why in ("one", "one", "two"):
        monkeypatch.setattr("tolariad.daemon.receivers.message_of", failing(why))
        receivers.publish(turn)
    monkeypatch.undo()
    receivers.publish(turn)
    (counts,) = receivers.status()
    await receivers.close()

    assert caplog.text.count("Telemetry could not be queued; the run is not affected") == 2
    assert "cost of a turn" not in caplog.text
    assert counts.waiting == 1


def test_a_reload_changes_the_command(start, run_dir, tmp_path):
    """The events after it go to the new one; the status has the counts of each."""
    file, one, two = (tmp_path / name for name in ("run.yaml", "one", "two"))
    values = {"epochs": 1000, "events": "CheckpointCommitted"}
    file.write_text(CONFIG.format(command=f"cat >> {one}; echo >> {one}", **values))
    daemon = start(config=str(file), sets=None, environ={"FAKE_TRAINER": "crawl@4"})
    daemon.until(lambda status: status["step"] >= 4)
    daemon.call("Checkpoint")
    wait_for(lambda: lines(one))
    told = daemon.until(lambda status: status["receivers"][0]["sent"] == len(lines(one)))
    assert told["receivers"][0]["to"] == "notify.command"
    file.write_text(CONFIG.format(command=f"cat >> {two}; echo >> {two}", **values))
    daemon.send(signal.SIGHUP)
    daemon.until(lambda _: of_type(run_dir, m.ConfigChanged))
    daemon.until(lambda status: status["receivers"][0]["sent"] == 0)
    before = len(lines(one))
    daemon.call("Checkpoint")
    wait_for(lambda: lines(two))
    daemon.send(signal.SIGTERM)
    assert daemon.wait() == 143, daemon.stderr

    assert len(lines(one)) == before
    assert {found["event"] for found in lines(two)} == {"CheckpointCommitted"}


def test_an_event_that_does_not_exist_is_refused(start):
    """Before anything is started, with the nearest name."""
    daemon = start(sets=[*SETS, "notify.command=exit 0", "notify.events=[RunComplete]"])

    assert daemon.wait() == 78
    assert "did you mean RunCompleted?" in daemon.stderr


def test_secrets_come_from_where_the_configuration_says(tmp_path):
    """A variable, a file, a credential; one that is missing is named without being shown."""
    (tmp_path / "hook").write_text("http://x\n")
    environ = {"HOOK": "http://y", "CREDENTIALS_DIRECTORY": str(tmp_path), "NONE": ""}

    assert read_secret(f"file:{tmp_path}/hook", environ) == "http://x"
    assert read_secret("credential:hook", environ) == "http://x"
    assert read_secret("env:HOOK", environ) == "http://y"
    (tmp_path / "empty").write_text("\n")
    for missing in ("env:NONE", "env:OTHER", f"file:{tmp_path}/no", "credential:no", f"file:{tmp_path}/empty"):
        with pytest.raises(SecretMissing, match=missing.partition(":")[2].rpartition("/")[2]):
            read_secret(missing, environ)
    with pytest.raises(SecretMissing, match="LoadCredential"):
        read_secret("credential:hook", {})
