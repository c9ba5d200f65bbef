"""SIGHUP reads the configuration again: what may change does, is an event first, and anything else changes nothing."""

from __future__ import annotations

import signal

import pytest

from tests.daemon.harness import of_type, within
from tests.daemon.test_notify import Manager
from tolariad.core.vocabulary.run import ConfigChanged, RunCompleted

CONFIG = """tolaria:
  task: digits
  epochs: {epochs}
  logging: {{level: {level}}}
  control: {{operators: {operators}}}
"""


@pytest.fixture
def manager(tmp_path):
    made = Manager(tmp_path / "notify")
    yield made
    made.socket.close()


def test_what_may_change_is_taken_over(start, run_dir, tmp_path, manager):
    """Level and operators change after a durable ConfigChanged; epochs do not, nor does an operator who is nobody."""
    file = tmp_path / "run.yaml"

    def write(**values: object) -> None:
        file.write_text(CONFIG.format(**{"epochs": 3, "level": "info", "operators": "[]"} | values))

    def reload(said: str) -> str:
        manager.heard.clear()
        daemon.send(signal.SIGHUP)
        manager.listen("RELOADING=1")
        assert int(manager.listen("MONOTONIC_USEC=").partition("=")[2]) > 0
        text = manager.listen(f"STATUS=the configuration {said}")
        manager.listen("READY=1")
        return text

    write()
    environ = {"FAKE_TRAINER": "crawl@4", "NOTIFY_SOCKET": str(manager.path)}
    daemon = start(config=str(file), environ=environ)
    daemon.until(lambda status: status["step"] >= 4)
    reload("is read again: nothing has changed")
    write(level="debug", operators="[root, '@root']")
    assert "control.operators, logging.level" in reload("is read again: ")
    assert [one.keys for one in of_type(run_dir, ConfigChanged)] == [("control.operators", "logging.level")]
    assert within(5, lambda: '"debug"' in (run_dir / "config.resolved.json").read_text())
    write(level="debug", epochs=4)
    assert "epochs" in reload("is not read again: ")
    write(level="info", operators="[nobody-of-this-name]")
    assert "nobody-of-this-name" in reload("is not read again: ")
    file.write_text("tolaria: [")
    assert str(file) in reload("is not read again: ")
    assert len(of_type(run_dir, ConfigChanged)) == 1
    assert daemon.status()["phase"] == "running"
    daemon.send(signal.SIGTERM)
    assert daemon.wait() == 0, daemon.stderr


def test_a_run_without_a_file_has_nothing_to_read(start, run_dir):
    """A terminal that closes sends SIGHUP too: the run goes on."""
    daemon = start(environ={"FAKE_TRAINER": "crawl@4"}, task="digits", epochs=1)
    daemon.until(lambda status: status["phase"] == "running")
    daemon.send(signal.SIGHUP)
    assert daemon.wait() == 0, daemon.stderr
    assert "nothing has changed" in daemon.stderr
    assert of_type(run_dir, RunCompleted)
