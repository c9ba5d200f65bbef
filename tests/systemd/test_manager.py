"""The units under a real systemd: ready, watched, activated, reloaded, stopped, bounded, and trained in the sandbox."""

from __future__ import annotations

import json
import socket
import stat

import pytest

from tests.daemon.harness import of_type
from tests.house.tree import ROOT
from tests.systemd.manager import Manager, cannot_boot
from tolariad.core import messages as m

pytestmark = pytest.mark.outside
# torch without its bytecode, on two cores that others use too.
TORCH_S = 300.0
CONFIG = """\
tolaria:
  task: digits
  epochs: {epochs}
  logging: {{level: {level}}}
  journal: {{segment_bytes: 1000000}}
"""


@pytest.fixture(scope="module")
def manager(tmp_path_factory):
    """One manager for all tests of this file, each with units of its own."""
    if why := cannot_boot():
        pytest.skip(why)
    booted = Manager(tmp_path_factory.mktemp("manager"))
    yield booted
    booted.end()


def fake(manager: Manager, name: str, *lines: str, epochs: int = 30, **environ: str) -> str:
    """A unit whose daemon is real and whose trainer is not: nothing imports torch. Returns the unit's name."""
    unit = f"tolariad@{name}.service"
    manager.path(f"/etc/tolariad/{name}.yaml").write_text(CONFIG.format(epochs=epochs, level="info"))
    run = f"/var/lib/tolariad/{name}"
    python = "/opt/tolariad/.venv/bin/python"
    trainer = [python, "-m", "tests.daemon.fake_trainer", "--run", run]
    asked = json.dumps({"run_dir": run, "config": f"/etc/tolariad/{name}.yaml", "trainer_command": trainer})
    given = " ".join(f"{key}={value}" for key, value in {"PYTHONPATH": str(ROOT), **environ}.items())
    manager.drop_in(
        unit, "ExecStart=", f"ExecStart={python} -m tests.daemon.start_daemon '{asked}'", f"Environment={given}", *lines
    )
    return unit


def status(manager: Manager, name: str) -> dict:
    """Ask the run's socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(60)
        sock.connect(str(manager.path(f"/run/tolaria/{name}/control.sock")))
        sock.sendall(b'{"method":"io.esper.tolaria.Status"}\0')
        answer = b""
        while not answer.endswith(b"\0"):
            answer += sock.recv(65536)
    return json.loads(answer[:-1])["parameters"]["status"]


def test_ready_owned_reloaded_and_stopped_amid_a_long_checkpoint(manager):
    """`start` returns to a run that answers as its own user. A reload is recorded. A stop gets its time, and
    its exit code 143 is no failure of the unit.
    """
    unit = fake(manager, "calm", "TimeoutStopSec=3", FAKE_STEP_S="0.2", FAKE_CHECKPOINT_S="4")
    manager.systemctl("start", unit)
    assert manager.show(unit, "ActiveState") == "active", manager.said()
    assert status(manager, "calm")["live"]

    run, pid = manager.path("/var/lib/tolariad/calm"), int(manager.show(unit, "MainPID") or 0)
    assert pid > 0
    user = next(line for line in manager.path("/etc/passwd").read_text().splitlines() if line.startswith("tolaria:"))
    assert run.stat().st_uid == int(user.split(":")[2]) != 0
    assert stat.S_IMODE(run.stat().st_mode) == 0o750

    manager.path("/etc/tolariad/calm.yaml").write_text(CONFIG.format(epochs=30, level="debug"))
    manager.systemctl("reload", unit)
    manager.until(lambda: of_type(run, m.ConfigChanged), "the reload's event")
    assert [one.keys for one in of_type(run, m.ConfigChanged)] == [("logging.level",)]

    manager.until(lambda: status(manager, "calm")["step"] >= 2, "two steps")
    manager.systemctl("stop", unit)
    assert (manager.show(unit, "ActiveState"), manager.show(unit, "Result")) == ("inactive", "success"), manager.said()
    assert of_type(run, m.RunStopped)


def test_a_daemon_that_stands_still_is_killed_and_goes_on(manager):
    """The watchdog ends it, the manager starts it again, and the run resumes where its journal ends."""
    unit = fake(manager, "stuck", "WatchdogSec=2", "RestartSec=100ms", FAKE_STEP_S="0.1")
    manager.systemctl("start", unit)
    manager.until(lambda: status(manager, "stuck")["step"] >= 3, "three steps")
    manager.systemctl("kill", "--kill-whom=main", "--signal=SIGSTOP", unit)
    manager.until(lambda: manager.show(unit, "NRestarts") == "1", "a restart by the watchdog")
    manager.until(lambda: manager.show(unit, "ActiveState") == "active", "a second life")

    assert status(manager, "stuck")["step"] >= 3
    assert len(of_type(manager.path("/var/lib/tolariad/stuck"), m.DaemonStarted)) == 2
    manager.systemctl("stop", unit)


def test_a_connection_starts_the_run_and_a_stop_ends_the_socket_too(manager):
    """The socket unit's listener answers the first client; the next scrape after a stop starts nothing."""
    unit = fake(manager, "asked", FAKE_STEP_S="0.2")
    manager.systemctl("start", "tolariad@asked.socket")
    assert manager.show(unit, "ActiveState") == "inactive"
    assert status(manager, "asked")["live"], manager.said()

    assert manager.show(unit, "ActiveState") == "active"
    manager.systemctl("stop", unit)
    # The stop is passed on to the socket, as a job of its own that systemctl does not wait for.
    manager.until(lambda: manager.show("tolariad@asked.socket", "ActiveState") == "inactive", "the socket's end")
    with pytest.raises(OSError, match=r"No such file|refused"):
        status(manager, "asked")


def test_a_wrong_configuration_is_not_tried_again_and_five_deaths_are_enough(manager):
    """Exit 78 ends the unit at once; exit 75 is started five times, then a person is needed."""
    wrong, dying = fake(manager, "wrong"), "tolariad@dying.service"
    manager.path("/etc/tolariad/wrong.yaml").write_text("tolaria: {task: digits, epochs: none}\n")
    manager.drop_in(dying, "ExecStart=", "ExecStart=/bin/sh -c 'echo once >> starts; exit 75'", "RestartSec=10ms")
    manager.systemctl("start", wrong)
    manager.systemctl("start", dying)
    manager.until(lambda: manager.show(dying, "NRestarts") == "5", "the sixth start asked for")
    manager.until(lambda: manager.show(dying, "ActiveState") == "failed", "the end of them")

    assert manager.path("/var/lib/tolariad/dying/starts").read_text() == "once\n" * 5
    assert (manager.show(wrong, "ExecMainStatus"), manager.show(wrong, "NRestarts")) == ("78", "0"), manager.said()


def test_torch_trains_in_the_sandbox(manager):
    """The unit as it is shipped, with a real task: every directive holds, and the run completes."""
    unit = "tolariad@digits.service"
    manager.path("/etc/tolariad/digits.yaml").write_text(CONFIG.format(epochs=1, level="info"))
    manager.drop_in(unit)
    manager.systemctl("start", unit)
    manager.until(lambda: manager.show(unit, "ActiveState") in {"inactive", "failed"}, "the end of the run", TORCH_S)

    assert (manager.show(unit, "Result"), manager.show(unit, "ExecMainStatus")) == ("success", "0"), manager.said()
    assert of_type(manager.path("/var/lib/tolariad/digits"), m.RunCompleted)
    assert manager.show(unit, "CapabilityBoundingSet") == ""
