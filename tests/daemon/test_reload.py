"""SIGHUP and `tolaria reload`: a reloadable change is recorded, then applied; any other changes nothing."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import threading
from types import SimpleNamespace

import pytest

from tests.daemon.harness import CallFailed, of_type
from tests.daemon.test_notify import Manager
from tests.waiting import wait_for
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.settings.followers import Follow
from tolariad.core.calc.settings.model import Settings
from tolariad.core.state.run_state import RunState
from tolariad.daemon import changes
from tolariad.daemon import settings as settings_of
from tolariad.daemon.reload import Reloader
from tolariad.daemon.request import RunRequest

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
    """Level and operators change after a durable ConfigChanged; epochs and an unknown operator are refused."""
    file = tmp_path / "run.yaml"

    def write(**values: object) -> None:
        file.write_text(CONFIG.format(**{"epochs": 1000, "level": "info", "operators": "[]"} | values))

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
    reload("was reloaded: nothing has changed")
    write(level="debug", operators="[root, '@root']")
    assert "control.operators, logging.level" in reload("was reloaded: ")
    assert [one.keys for one in of_type(run_dir, m.ConfigChanged)] == [("control.operators", "logging.level")]
    wait_for(lambda: '"debug"' in (run_dir / "config.resolved.json").read_text())
    write(level="debug", epochs=1001)
    assert "epochs" in reload("was not reloaded: ")
    write(level="info", operators="[nobody-of-this-name]")
    assert "nobody-of-this-name" in reload("was not reloaded: ")
    file.write_text("tolaria: [")
    assert str(file) in reload("was not reloaded: ")
    assert len(of_type(run_dir, m.ConfigChanged)) == 1
    # `tolaria reload` does the same, and has the answer.
    with pytest.raises(CallFailed, match=re.escape(str(file))):
        daemon.call("Reload")
    write(level="warning", operators="[root, '@root']")
    assert daemon.call("Reload") == {"changed": ["logging.level"]}
    assert daemon.call("Reload") == {"changed": []}
    assert len(of_type(run_dir, m.ConfigChanged)) == 2
    assert daemon.status()["phase"] == "running"
    daemon.send(signal.SIGTERM)
    assert daemon.wait() == 143, daemon.stderr


def test_the_logs_format_is_taken_over(start, tmp_path):
    """A daemon that logs JSON logs text after the reload, each record with the run and the step."""
    file = tmp_path / "run.yaml"
    file.write_text("tolaria: {task: digits, epochs: 1000, logging: {format: json}}\n")
    daemon = start(config=str(file), environ={"FAKE_TRAINER": "crawl@4"})
    daemon.until(lambda status: status["step"] >= 4)
    file.write_text("tolaria: {task: digits, epochs: 1000, logging: {format: text}}\n")
    daemon.send(signal.SIGHUP)
    daemon.until(lambda _: of_type(daemon.run_dir, m.ConfigChanged))
    daemon.send(signal.SIGTERM)
    assert daemon.wait() == 143, daemon.stderr
    started, ended = (
        next(line for line in daemon.stderr.splitlines() if words in line)
        for words in ("started as pid", "The daemon ends")
    )

    record = json.loads(started)
    assert (record["run"], record["step"]) == (daemon.run_dir.name, 0)
    assert re.search(rf"run={daemon.run_dir.name} step=[1-9]", ended)


def test_a_run_without_a_file_has_nothing_to_read(start, manager):
    """A terminal that closes sends SIGHUP too: the run continues."""
    daemon = start(environ={"FAKE_TRAINER": "crawl@4", "NOTIFY_SOCKET": str(manager.path)}, task="digits", epochs=1000)
    daemon.until(lambda status: status["phase"] == "running")
    daemon.send(signal.SIGHUP)
    assert "nothing has changed" in manager.listen("STATUS=the configuration was reloaded: ")
    goes_on(daemon)
    assert "nothing has changed" in daemon.stderr


def goes_on(daemon) -> None:
    """Wait for a further step of the run, and stop it."""
    step = daemon.status()["step"]
    daemon.until(lambda status: status["step"] > step, "a further step")
    daemon.send(signal.SIGTERM)
    assert daemon.wait() == 143, daemon.stderr


async def test_a_change_that_could_not_be_recorded_is_not_used(tmp_path):
    """If the journal fails just then, the old settings stay, and the service manager is still told the end."""
    file = tmp_path / "run.yaml"
    file.write_text(CONFIG.format(epochs=3, level="info", operators="[]"))
    request = RunRequest(run_dir=tmp_path, config=file)
    resolved = settings_of.resolve(settings_of.load(request))
    state = RunState(run=st.Run(config=resolved.text, rng_seed=resolved.settings.rng_seed))
    refuse = m.Refusal(error="NotDurable", why="the disk is full", phase="frozen")
    kernel = SimpleNamespace(durable=state, failure=None, submit=lambda given, answer: answer(refuse))
    said, used, over = [], [], asyncio.Event()
    notifier = SimpleNamespace(reloading=lambda: said.append("reloading"), status=said.append, ready=over.set)
    reloader = Reloader(
        request, SimpleNamespace(run_dir=tmp_path), kernel, notifier, check=lambda _: None, take_over=used.append
    )
    file.write_text(CONFIG.format(epochs=3, level="debug", operators="[]"))
    reloader.read_again()
    async with asyncio.timeout(20):
        await over.wait()

    assert used == []
    assert said == ["reloading", "the configuration was not reloaded: the disk is full"]


async def test_the_loop_turns_while_a_configuration_is_read(tmp_path, monkeypatch):
    """A slow file blocks only a thread; a reload requested in the meantime follows, once."""
    file = tmp_path / "run.yaml"
    file.write_text(CONFIG.format(epochs=3, level="info", operators="[]"))
    request = RunRequest(run_dir=tmp_path, config=file)
    resolved = settings_of.resolve(settings_of.load(request))
    state = RunState(run=st.Run(config=resolved.text, rng_seed=resolved.settings.rng_seed))
    go_on, reads, load = threading.Event(), [], settings_of.load

    def slow(asked: RunRequest) -> object:
        reads.append(threading.current_thread())
        assert go_on.wait(20)
        return load(asked)

    monkeypatch.setattr(settings_of, "load", slow)
    said, over = [], asyncio.Event()

    def ready() -> None:
        if len(said) == 4:
            over.set()

    notifier = SimpleNamespace(reloading=lambda: said.append("reloading"), status=said.append, ready=ready)
    kernel = SimpleNamespace(durable=state, failure=None)
    reloader = Reloader(
        request, SimpleNamespace(run_dir=tmp_path), kernel, notifier, check=lambda _: None, take_over=lambda _: None
    )
    for _ in range(3):
        reloader.read_again()
        await asyncio.sleep(0.01)
    assert said == ["reloading"]
    go_on.set()
    async with asyncio.timeout(20):
        await over.wait()

    assert said == ["reloading", "the configuration was reloaded: nothing has changed"] * 2
    assert threading.current_thread() not in reads


IMPOSSIBLE = {
    "checkpoint: {keep_days: 1e308}": "checkpoint.keep_days",
    "checkpoint_storage_quota_gb: 1e308": "checkpoint_storage_quota_gb",
    "torch_threads: 99999999999": "torch_threads",
    "task_options: {model:cnn}": "task_options.model:cnn",
}


def test_an_impossible_value_is_refused_at_a_reload_by_its_key(start, run_dir, tmp_path, manager):
    """The run continues with its old settings."""
    file = tmp_path / "run.yaml"
    usual = "tolaria:\n  task: digits\n  epochs: 1000\n"
    file.write_text(usual)
    daemon = start(config=str(file), environ={"FAKE_TRAINER": "crawl@4", "NOTIFY_SOCKET": str(manager.path)})
    daemon.until(lambda status: status["step"] >= 4)
    for text, key in IMPOSSIBLE.items():
        manager.heard.clear()
        file.write_text(f"{usual}  {text}\n")
        daemon.send(signal.SIGHUP)
        assert key in manager.listen("STATUS=the configuration was not reloaded: ")
    goes_on(daemon)
    assert of_type(run_dir, m.ConfigChanged) == []


def test_a_reload_does_not_wait_for_a_writer_of_a_pipe(start, tmp_path, manager):
    """A file that became a FIFO is refused by name, and the run continues."""
    file = tmp_path / "run.yaml"
    file.write_text("tolaria:\n  task: digits\n  epochs: 1000\n")
    daemon = start(config=str(file), environ={"FAKE_TRAINER": "crawl@4", "NOTIFY_SOCKET": str(manager.path)})
    daemon.until(lambda status: status["step"] >= 4)
    file.unlink()
    os.mkfifo(file)
    daemon.send(signal.SIGHUP)

    assert "is not a regular file" in manager.listen("STATUS=the configuration was not reloaded: ")
    goes_on(daemon)


def test_a_list_that_was_empty_is_shown_with_its_items():
    """And the other way round: neither is called nothing."""
    none, one = Settings(), Settings(follow=(Follow(to="tensorboard", uri="tb"),))
    shown = '[{"to":"tensorboard","uri":"tb","project":""}]'

    assert changes._difference(none, one, "follow", "") == f"  follow: [] in the run, {shown} now"
    assert changes._difference(one, none, "follow", "why") == f"  follow: {shown} in the run, [] now (why)"
    assert changes._difference(none, one, "notify.command", "") == "  notify.command: nothing in the run, nothing now"
