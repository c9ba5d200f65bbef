"""Fixtures: a live run that takes orders, a run without a daemon, and a way to run commands."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.control.fakes import Recorder, Served
from tolariad.cli import probes
from tolariad.cli.tolaria import main
from tolariad.cli.tolariad import main as main_of_tolariad

TIMEOUT_S = 60.0


class Said:
    """The result of a command: exit code, stdout, stderr."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def lines(self):
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture(autouse=True)
def _a_place_of_its_own(tmp_path, monkeypatch):
    """Hide the runs of this machine, and turn colours off."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "x"))
    for name in ("TOLARIA_RUN", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def tolaria(capsys):
    """Run one command in this process."""

    def give(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(one) for one in arguments])
        captured = capsys.readouterr()
        return Said(ended.value.code, captured.out, captured.err)

    return give


@pytest.fixture
def tolariad(capsys):
    """Run one command of `tolariad` in this process. Return exit code, stdout and stderr."""

    def give(*arguments):
        with pytest.raises(SystemExit) as ended:
            main_of_tolariad([str(one) for one in arguments])
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return give


@pytest.fixture
def answer(monkeypatch):
    """Give trials this answer, without a process. Return the list of their requests, which grows."""

    def give(found):
        asked = []

        def ask(trial, _):
            asked.append(trial)
            return found

        monkeypatch.setattr(probes, "ask", ask)
        return asked

    return give


@pytest.fixture
def forked_trials(monkeypatch, template):
    """Let the processes of trials be forks. One that is started as a user's is in test_profiling.py."""

    def run(command, *, env, **given):
        _, flag, module, *arguments = command
        assert flag == "-m"
        with tempfile.TemporaryFile() as request, tempfile.TemporaryFile() as answer:
            request.write(given["input"])
            request.seek(0)
            process = template.start(
                arguments,
                environment=env,
                folder=Path.cwd(),
                log=answer.fileno(),
                errors=2,
                shells=0,
                program=module,
                passed={0: request.fileno()},
            )
            code = process.wait(TIMEOUT_S)
            answer.seek(0)
            return subprocess.CompletedProcess(command, code, answer.read())

    monkeypatch.setattr(probes, "subprocess", SimpleNamespace(run=run, PIPE=subprocess.PIPE))


@pytest.fixture
def recorder(run_dir):
    made = Recorder(run_dir / "journal", segment_bytes=1 << 20)
    made.begin_run()
    for _ in range(12):
        made.step()
    yield made
    made.journal.close()


@pytest.fixture
def thirty_steps(run_dir):
    """Record thirty steps in small segments, and close the journal. Return the status after them."""
    made = Recorder(run_dir / "journal", segment_bytes=64 * 1024)
    made.begin_run()
    for _ in range(30):
        made.step()
    status = made.status()
    made.journal.close()
    return status


@pytest.fixture
def dead_run(recorder, run_dir):
    """A run whose daemon has ended."""
    recorder.journal.close()
    return run_dir


@pytest.fixture
def live_run(recorder, run_dir):
    """A live run; `.recorder` plays the trainer."""
    with Served(recorder, run_dir) as served:
        yield served
