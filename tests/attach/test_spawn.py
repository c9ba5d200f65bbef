"""A real recorder's process: it has nothing of the program but the link, opens what it is told to, and ends with it."""

from __future__ import annotations

import multiprocessing
import os
import select
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

import tolariad
from journal import Journal, JournalMissing
from tests.library.small import CONFIG
from tests.recorded import events_of, of
from tests.waiting import wait_for
from tolariad.attach import spawn, words
from tolariad.attach.link import LinkLost
from tolariad.config import load
from tolariad.core import messages as m
from tolariad.refusal import StartRefused
from tolariad.trainer.tasks.task import GIVEN


@pytest.fixture(scope="module")
def recorder():
    """One recorder for the tests that leave it idle."""
    process = spawn.RecorderProcess()
    yield process
    process.end(10)


def hello(run_dir: Path, **other) -> words.Hello:
    wanted = {
        "version": tolariad.__version__,
        "run_dir": str(run_dir),
        "config": None,
        "settings": msgspec.json.encode(replace(load(CONFIG), task=GIVEN)),
        "accept_config": False,
        "accept_data": False,
        "accept_code": False,
        "environment": dict(os.environ),
        "cwd": str(run_dir.parent),
    }
    return words.Hello(**{**wanted, **other})


def is_gone(process: spawn.RecorderProcess) -> bool:
    return not process.is_running


def test_it_has_nothing_of_the_program_but_the_link(recorder, tmp_path):
    """A session of its own, no open file of the program's, no output of it, and no torch."""
    leaked = (tmp_path / "open").open("w")
    os.set_inheritable(leaked.fileno(), True)
    recorder.link.send(hello(tmp_path / "run", version="0.0.0"))  # an answer: it has imported everything
    recorder.link.receive()
    place = Path(f"/proc/{recorder.pid}")
    open_files = {one.name: str(one.readlink()) for one in (place / "fd").iterdir()}

    assert os.getsid(recorder.pid) == recorder.pid
    assert "/libtorch" not in (place / "maps").read_text()
    assert open_files["0"] == os.devnull
    assert len([one for one in open_files.values() if one.startswith("socket:")]) == 1
    assert str(tmp_path / "open") not in open_files.values()
    leaked.close()


def test_other_files_than_the_program_has_imported_are_refused_by_name(recorder, tmp_path):
    """An update of the package while a program runs. Nothing is made."""
    recorder.link.send(hello(tmp_path / "run", version="0.0.0"))
    refused, _ = recorder.link.receive()

    assert "0.0.0" in refused.why
    assert tolariad.__version__ in refused.why
    assert not (tmp_path / "run").exists()


def is_started(run_dir: Path) -> bool:
    try:
        return bool(of(events_of(run_dir), m.RunStarted))
    except JournalMissing:
        return False


@pytest.mark.parametrize("after", ["start", "Hello", "Opened", "Begin"])
def test_a_link_that_is_cut_ends_the_recorder_and_leaves_the_run_free(tmp_path, after):
    """Before Begin nothing is recorded. After it the start is, and no trainer."""
    process, run_dir = spawn.RecorderProcess(), tmp_path / "run"
    if after != "start":
        process.link.send(hello(run_dir))
    if after in ("Opened", "Begin"):
        assert isinstance(process.link.receive()[0], words.Opened)
    if after == "Begin":
        process.link.send(words.Begin(program="test", workers=0, cores=(0,)))
        assert isinstance(process.link.receive()[0], words.Train)
    process.link.shut()
    poll = select.poll()
    poll.register(os.pidfd_open(process.pid), select.POLLIN)
    assert poll.poll(60_000)
    assert process._process.wait(10) == 0
    process.end(1)
    if after in ("Opened", "Begin"):
        Journal.open(run_dir / "journal", segment_bytes=1_000_000, allow_filesystem=True).close()
        assert is_started(run_dir) == (after == "Begin")


def test_a_program_without_a_python_gets_a_sentence(monkeypatch):
    """An application with Python inside: `sys.executable` is none, or is no Python."""
    monkeypatch.setattr(multiprocessing.spawn, "get_executable", lambda: "/bin/true")
    process = spawn.RecorderProcess()
    wait_for(lambda: is_gone(process))
    with pytest.raises((LinkLost, OSError)):
        process.link.receive()
    assert "/bin/true ended at once" in process.refusal().why
    process.end(1)
    monkeypatch.setattr(multiprocessing.spawn, "get_executable", lambda: "/no/such/python")
    with pytest.raises(StartRefused, match="cannot be started: No such file"):
        spawn.RecorderProcess()
