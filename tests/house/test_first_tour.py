"""The README's first tour, in an environment that has only the wheel and what it asks for."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time

import pytest

from tests.house.clean import environment
from tests.house.test_packaging import build
from tests.house.tree import ROOT
from tests.waiting import wait_for

PATIENCE_S = 300.0
ENTER = ". .venv/bin/activate"


def tour() -> list[list[str]]:
    """Return the command lines of the README's tour, block by block, without comments."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## A first tour\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [[line.split(" #")[0].strip() for line in block.splitlines() if line != ENTER] for block in blocks]


class Terminal:
    """A user's shell in an empty folder, with the clean environment first on its PATH."""

    def __init__(self, folder, commands):
        self.folder = folder
        (folder / "home").mkdir()
        home = {"HOME": str(folder / "home"), "XDG_RUNTIME_DIR": str(folder / "home"), "LANG": "C.UTF-8"}
        self.environment = {**home, "PATH": f"{commands}:/usr/bin:/bin", "TOLARIA_ALLOW_FILESYSTEM": "1"}
        self.begun = []

    def begin(self, line):
        """Start a line that does not end by itself."""
        output = (self.folder / f"output-{len(self.begun)}").open("wb")
        process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"], cwd=self.folder, env=self.environment, stdout=output, stderr=output
        )
        self.begun.append(process)
        return process

    def type(self, line):
        """Run a line. Return what it prints."""
        done = subprocess.run(
            ["bash", "-e", "-c", line], cwd=self.folder, env=self.environment, capture_output=True, text=True,
            timeout=PATIENCE_S,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def said(self, number):
        return (self.folder / f"output-{number}").read_text()

    def until_epoch(self, epoch):
        """Wait until the run trains this epoch."""

        def epoch_now():
            asked = subprocess.run(
                ["tolaria", "status", "--json"], cwd=self.folder, env=self.environment, capture_output=True, text=True
            )
            return json.loads(asked.stdout)["epoch"] if asked.returncode == 0 else 0

        wait_for(lambda: epoch_now() >= epoch, f"epoch {epoch}", PATIENCE_S)


@pytest.fixture
def terminal(tmp_path):
    """Ends what a failing tour leaves."""
    commands = environment(tmp_path / "clean", build("wheel", ROOT, tmp_path / "dist"), extras={"examples"})
    (tmp_path / "work").mkdir()
    opened = Terminal(tmp_path / "work", commands)
    yield opened
    for one in opened.begun:
        if one.poll() is None:
            one.kill()
            one.wait()


@pytest.mark.outside
def test_the_first_tour(terminal):
    """Every command of the README, typed as it stands; nothing is found in this checkout."""
    (start,), orders, (kill, again), questions = tour()
    where = terminal.type("python -c 'import journal, tolariad; print(journal.__file__, tolariad.__file__)'")
    assert str(ROOT) not in where
    assert json.loads(terminal.type("tolaria version --json"))["installed_as"] == "wheel"

    terminal.begin(start)
    terminal.until_epoch(12)
    for line in orders:
        if line.startswith("tolaria watch"):
            watching = terminal.begin(line)
            time.sleep(1)
            watching.send_signal(signal.SIGINT)
            assert watching.wait(PATIENCE_S) in (0, 130), terminal.said(1)
        else:
            terminal.type(line)
    terminal.type(kill)
    assert terminal.begun[0].wait(PATIENCE_S) == -signal.SIGKILL
    running = terminal.begin(again)
    terminal.until_epoch(13)
    said = {line: terminal.type(line) for line in questions}
    assert running.wait(PATIENCE_S) == 0, terminal.said(2)

    assert all(text for line, text in said.items() if "export-weights" not in line), said
    assert (terminal.folder / "model.safetensors").stat().st_size > 0
    assert "bit for bit" in terminal.said(2)


def test_the_tour_has_its_shape():
    """Four blocks: a start, orders, a kill and a start, questions that end with a stop."""
    (start,), orders, (kill, again), questions = tour()

    assert start == again
    assert start.startswith("tolariad run --task digits")
    assert kill.startswith("kill -9")
    assert any(line.startswith("tolaria rollback") for line in orders)
    assert questions[-1] == "tolaria stop"
