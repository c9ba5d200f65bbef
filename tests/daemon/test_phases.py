"""A start depends on the run's phase, on its own arguments, and on the configuration."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.daemon.harness import SETS, ForkedDaemon, is_gone, of_type
from tests.outside.programs import outside
from tests.recorded import events_of
from tests.waiting import wait_for
from tolariad.core import messages as m

CRAWL = {"FAKE_TRAINER": "crawl@4"}
# The summary of `tolariad run` tells people how a run ended, so without one only a whole log has that.
TOLD = [*SETS, "logging.format=json"]


def test_a_completed_run_says_so(start, run_dir):
    """The second start of a run that is complete exits 0 without a trainer; with `linger` it stays until a signal."""
    assert start(epochs=1, task="digits").wait() == 0
    assert of_type(run_dir, m.RunCompleted)

    again = start(sets=TOLD)
    assert again.wait() == 0
    assert "the run is complete" in again.stderr

    lingers = start(linger=True)
    assert lingers.until(lambda status: status["phase"] == "completed")["accuracy"] == pytest.approx(0.9)
    lingers.send(signal.SIGTERM)
    assert lingers.wait() == 0
    assert len(of_type(run_dir, m.TrainerStarted)) == 1
    assert len(of_type(run_dir, m.DaemonStarted)) == 3


def test_a_run_that_never_trained_begins_anew(start, run_dir):
    """Refused at set-up, corrected, started again in the same folder: it runs, with any key changed, without a flag."""
    refused = start(environ={"FAKE_REFUSAL": "this model has no parameters"}, sets=TOLD)
    assert refused.wait() == 78
    assert "this model has no parameters" in refused.stderr
    earlier = of_type(run_dir, m.RunStarted)[0]

    again = start(task="digits", epochs=3, sets=[*SETS, "batch_size=32", "learning_rate.base_lr=0.5"])
    assert again.wait() == 0, again.stderr
    assert "the run begins anew" in again.stderr
    assert of_type(run_dir / "failed-1", m.RunStarted) == [earlier]
    begun = of_type(run_dir, m.RunStarted)
    assert len(begun) == 1
    assert begun[0].run_id != earlier.run_id
    assert '"batch_size": 32,' in begun[0].config
    assert not of_type(run_dir, m.RunFailed)
    assert [one.step for one in of_type(run_dir, m.StepCompleted)] == list(range(1, 31))


@pytest.mark.parametrize("moved", [(), ("checkpoints",), ("checkpoints", "journal")])
def test_a_kill_while_it_is_set_aside_is_in_nobodys_way(start, run_dir, moved):
    """The next start begins the run anew, however much was moved before the kill."""
    assert start(environ={"FAKE_REFUSAL": "no"}).wait() == 78
    (run_dir / "checkpoints" / "c000001").mkdir(parents=True)
    (run_dir / "checkpoints" / "c000001" / "manifest.json").write_text("{}")
    (run_dir / "failed-1").mkdir()
    for name in moved:
        (run_dir / name).rename(run_dir / "failed-1" / name)

    again = start(task="digits")
    assert again.wait() == 0, again.stderr
    assert of_type(run_dir, m.RunCompleted)


def test_a_failed_run_that_trained_needs_a_word(start, run_dir):
    """It has failed: 70, until `--retry` continues it."""
    daemon = start(environ=CRAWL)
    daemon.until(lambda status: status["step"] >= 4)
    daemon.kill()
    assert start(environ={"FAKE_REFUSAL": "the data is gone"}).wait() == 78

    again = start(sets=TOLD)
    assert again.wait() == 70
    assert "--retry" in again.stderr

    retried = start(retry=True)
    assert retried.wait() == 0, retried.stderr
    assert len(of_type(run_dir, m.RunRetried)) == 1
    assert of_type(run_dir, m.RunCompleted)


@pytest.mark.parametrize("change", ["learning_rate.base_lr=0.5", "checkpoint.keep_last=2"])
def test_a_failed_run_is_not_changed_by_a_start_without_retry(start, run_dir, change):
    """The refusal comes before anything else, and its command has every word that is needed."""
    daemon = start(environ=CRAWL)
    daemon.until(lambda status: status["step"] >= 4)
    daemon.kill()
    assert start(environ={"FAKE_REFUSAL": "the disk is gone"}).wait() == 78
    before, configuration = events_of(run_dir), (run_dir / "config.resolved.json").read_bytes()

    refused = start(sets=[*SETS, change], accept_config=True)
    assert refused.wait() == 70
    assert "the run has failed: the disk is gone" in refused.stderr
    assert f"to go on: tolariad run --set {SETS[0]} --set {change} --dir {run_dir} --retry --accept-config\n" in (
        refused.stderr
    )
    assert "goes on" not in refused.stderr
    assert events_of(run_dir) == before
    assert (run_dir / "config.resolved.json").read_bytes() == configuration

    if "base_lr" in change:
        both = start(sets=[*SETS, change])
        assert both.wait() == 78
        assert f"--dir {run_dir} --retry --accept-config\n" in both.stderr
    assert start(sets=[*SETS, change], accept_config=True, retry=True).wait() == 0


def test_a_pause_outlives_its_daemon(start, run_dir):
    """Paused, killed, started again: the run stays paused without a trainer until it is resumed."""
    daemon = start(environ=CRAWL)
    daemon.until(lambda status: status["step"] >= 3)
    daemon.call("Pause")
    paused = daemon.until(lambda status: status["phase"] == "paused")
    daemon.kill()

    again = start()
    status = again.until(lambda status: status["phase"] == "paused")
    time.sleep(0.3)
    assert again.status()["step"] == status["step"] == paused["step"]
    assert len(of_type(run_dir, m.TrainerStarted)) == 1
    again.call("Resume")
    assert again.wait() == 0, again.stderr
    assert len(of_type(run_dir, m.RunPaused)) == 1
    assert [one.step for one in of_type(run_dir, m.StepCompleted)] == list(range(1, 31))


def test_a_second_daemon_takes_nothing_from_the_first(start, run_dir):
    """It is refused with 75 and a sentence; socket, journal and configuration stay the first one's."""
    first = start(environ=CRAWL)
    first.until(lambda status: status["step"] >= 3)
    configuration = (run_dir / "config.resolved.json").read_bytes()
    second = start(task="digits", epochs=9)
    assert second.wait() == 75
    assert "another process runs" in second.stderr
    assert first.status()["pid"] == first.pid
    assert (run_dir / "config.resolved.json").read_bytes() == configuration
    first.send(signal.SIGTERM)
    assert first.wait() == 143, first.stderr
    assert len(of_type(run_dir, m.DaemonStarted)) == 1


def test_another_configuration_is_refused_by_name(start, run_dir):
    """A key that differs stops the start with 78 and nothing changed, unless it is accepted or reloadable."""
    assert start(epochs=1, task="digits").wait() == 0
    before = events_of(run_dir)
    refused = start(sets=[*SETS, "learning_rate.base_lr=0.5"])
    assert refused.wait() == 78
    assert "  learning_rate.base_lr: 0.003 in the run, 0.5 now\n" in refused.stderr
    command = f"tolariad run --set {SETS[0]} --set learning_rate.base_lr=0.5 --dir {run_dir}"
    assert f"{command} --accept-config\n" in refused.stderr
    assert "epochs" not in refused.stderr
    for accept in (False, True):
        never = start(sets=[*SETS, "batch_size=32"], accept_config=accept)
        assert never.wait() == 78
        assert "  batch_size: 64 in the run, 32 now (the place within an epoch is" in never.stderr
        assert f"--set batch_size=32 --dir {run_dir}-2 --from {run_dir}\n" in never.stderr
    assert events_of(run_dir) == before

    assert start(sets=[*SETS, "logging.level=debug"]).wait() == 0
    assert start(sets=[*SETS, "learning_rate.base_lr=0.5"], accept_config=True).wait() == 0
    assert [one.keys for one in of_type(run_dir, m.ConfigChanged)] == [("logging.level",), ("learning_rate.base_lr",)]


def test_a_change_that_was_never_recorded_is_no_change(start, run_dir):
    """A start with --accept-config ends before its first event; the next plain start continues with the old
    configuration.
    """
    daemon = start(environ=CRAWL)
    daemon.until(lambda status: status["step"] >= 4)
    daemon.kill()
    changing = start(epochs=1, task="digits", accept_config=True, environ={"TOLARIA_FAILPOINT": "commit:1"})
    assert changing.wait() == -signal.SIGKILL
    assert '"epochs": 1,' in (run_dir / "config.resolved.json").read_text()

    assert start().wait() == 0
    assert of_type(run_dir, m.ConfigChanged) == []
    assert of_type(run_dir, m.RunCompleted)[0].epochs == 3
    assert '"epochs": 3,' in (run_dir / "config.resolved.json").read_text()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"config": "/nonexistent/run.yaml"}, "/nonexistent/run.yaml"),
        ({"sets": ["epochz=3"], "task": "digits"}, "epochs"),
        ({"sets": [], "task": None, "epochs": 2}, "task"),
        ({"sets": ["control.operators=[nobody-of-this-name]"], "task": "digits"}, "nobody-of-this-name"),
    ],
    ids=["no file", "no such key", "no task", "no such user"],
)
def test_a_wrong_configuration_starts_nothing(start, run_dir, asked, said):
    """Exit code 78, with the key's name, and no event of a run."""
    daemon = start(**asked)
    assert daemon.wait() == 78
    assert said in daemon.stderr
    assert not (run_dir / "journal").exists() or events_of(run_dir) == []


def test_a_damaged_journal_starts_nothing(start, run_dir):
    """An acknowledged byte that changed: exit 65, file and place named, nothing written."""
    assert start(epochs=1, task="digits").wait() == 0
    # The events of a run that has ended are in its packed segments.
    segment = next((run_dir / "journal").glob("*.wal.zst"))
    whole = bytearray(segment.read_bytes())
    whole[300] ^= 1
    segment.write_bytes(whole)
    again = start()
    assert again.wait() == 65
    assert segment.name in again.stderr
    assert segment.read_bytes() == bytes(whole)


def test_a_folder_that_cannot_be_written_is_said(start, tmp_path):
    """Exit 74 if the run folder cannot be created."""
    (tmp_path / "file").write_text("")
    daemon = start(run_dir=tmp_path / "file" / "run")
    assert daemon.wait() == 74
    assert str(tmp_path / "file" / "run") in daemon.stderr


@pytest.mark.outside
def test_a_question_starts_no_training(run_dir):
    """Started by a connection to a stopped run, the daemon answers, trains only after `resume`, and exits when idle."""
    first = ForkedDaemon(run_dir, environ=CRAWL)
    first.until(lambda status: status["step"] >= 3)
    first.send(signal.SIGTERM)
    assert first.wait() == 143
    stopped = len(of_type(run_dir, m.StepCompleted))

    activated = activate(run_dir)
    status = activated.status()
    assert (status["phase"], status["step"], status["live"]) == ("stopped", stopped, True)
    assert activated.wait() == 0, activated.stderr
    assert "nobody has asked" in activated.stderr
    assert len(of_type(run_dir, m.StepCompleted)) == stopped
    assert of_type(run_dir, m.DaemonStarted)[-1].activated

    resumed = activate(run_dir)
    resumed.call("Resume")
    assert resumed.wait() == 0, resumed.stderr
    assert [one.step for one in of_type(run_dir, m.StepCompleted)] == list(range(1, 31))
    assert len(of_type(run_dir, m.RunResumed)) == 1
    assert [one.origin.value for one in of_type(run_dir, m.StopRequested)] == ["signal"]
    assert is_gone(resumed.pid)


def activate(run_dir) -> ForkedDaemon:
    """A daemon that systemd-socket-activate starts with the first connection."""
    place = run_dir / "control.sock"
    place.unlink(missing_ok=True)
    # It passes on no variable that it is not told.
    passed = [f"--setenv={name}" for name in ("FAKE_STEP_S=0.002", "HOME", "PATH", "XDG_RUNTIME_DIR")]
    wrapper = (outside("systemd-socket-activate"), "-l", str(place), "--fdname=control", *passed)
    daemon = ForkedDaemon(run_dir, wrapper=wrapper, idle_exit_s=1.0)
    wait_for(lambda: is_listening(place))
    return daemon


def is_listening(place: Path) -> bool:
    """Whether connections to this socket are taken: its file exists a moment before. Nothing connects to it."""
    # Columns of proc(5): the fourth has the flag __SO_ACCEPTCON, the last is the path.
    found = (line.split() for line in Path("/proc/net/unix").read_text().splitlines())
    return any(one[-1] == str(place) and int(one[3], 16) & 0x10000 for one in found)
