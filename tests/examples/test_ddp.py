"""The examples and command lines of docs/ranks.md: they load, agree with the page, run, and come back after a kill."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from journal import JournalError
from tests.daemon.conftest import start
from tests.recorded import events_of, of, pieces
from tests.waiting import wait_for
from tolariad.config import load
from tolariad.core import messages as m

__all__ = ["start"]

ROOT = Path(__file__).resolve().parents[2]
PAGE, SCRIPT = ROOT / "docs" / "ranks.md", ROOT / "examples" / "ddp" / "train.py"
CONFIG = ROOT / "examples" / "ddp.yaml"


def test_the_lines_that_the_page_adds_are_those_of_the_example():
    """And those that it takes out are not there. An epoch's number is a name in the script."""
    (block,) = re.findall(r"^```diff\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    script = [line.strip() for line in SCRIPT.read_text(encoding="utf-8").replace("EPOCHS)", "10)").splitlines()]
    loss = "run.step(nn.functional.cross_entropy(model(x), y))"

    added = [line[1:].strip() for line in block.splitlines() if line.startswith("+")]
    removed = [line[1:].strip() for line in block.splitlines() if line.startswith("-")]
    assert added
    assert all(line in script for line in added if line != "run.step(loss)")
    assert loss in script
    assert not any(line in script for line in removed)


def test_the_configuration_of_the_example_has_two_ranks():
    """It is refused nowhere."""
    assert load(CONFIG).parallel.ranks == 2


@pytest.mark.torture
def test_the_example_of_a_task_comes_back_after_a_kill_with_the_same_bits(start, tmp_path):
    """`tolariad run examples/ddp.yaml`, with fewer epochs; rank 1 is killed once the first epoch has a checkpoint."""
    ends = []
    for name in ("plain", "killed"):
        folder = tmp_path / name
        sets = ["epochs=4", "rng_seed=3", "journal.segment_bytes=1000000"]
        daemon = start(as_user=True, run_dir=folder, config=str(CONFIG), task=None, trainer_command=None, sets=sets)
        if name == "killed":
            daemon.until(lambda status: status["step"] > 0, "the first step")
            await_checkpoint(folder)
            (victim,) = [pid for pid in children_of(daemon.pid) if "--rank 1" in words_of(pid)]
            os.kill(victim, signal.SIGKILL)
        assert daemon.wait() == 0, daemon.stderr
        ends.append(pieces(folder))

    (died,) = of(events_of(tmp_path / "killed"), m.TrainerDied)
    assert (died.rank, died.signal) == (1, "SIGKILL")
    assert ends[0] == ends[1]


@pytest.mark.torture
def test_the_command_of_the_page_comes_back_after_a_kill_with_the_same_bits(tmp_path):
    """`torchrun --nproc-per-node 2 --max-restarts 3 examples/ddp/train.py`, then `tolaria status runs/ddp`."""
    commands = re.findall(r"^(?:export|torchrun|tolaria) .*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)[:3]
    assert [one.split()[0] for one in commands] == ["export", "torchrun", "tolaria"]
    name, _, value = commands[0].removeprefix("export ").partition("=")
    words = commands[1].replace("examples/ddp/train.py", str(SCRIPT)).split()[1:]
    environ = {**os.environ, name: value, "PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": str(tmp_path)}
    ends = []
    for killed in (False, True):
        folder = tmp_path / str(killed)
        folder.mkdir()
        command = [sys.executable, "-m", "torch.distributed.run", *words]
        with subprocess.Popen(command, cwd=folder, env=environ, start_new_session=True) as process:
            if killed:
                await_checkpoint(folder / "runs" / "ddp")
                victim = max(pid for pid in children_of(process.pid) if str(SCRIPT) in words_of(pid))
                os.kill(victim, signal.SIGKILL)
            assert process.wait(300) == 0
        ends.append(pieces(folder / "runs" / "ddp"))
        status = [str(Path(sys.executable).with_name("tolaria")), *commands[2].split()[1:]]
        shown = subprocess.run(status, cwd=folder, env=environ, capture_output=True, text=True, check=False)
        assert "completed" in shown.stdout, shown.stderr
    assert ends[0] == ends[1]


def await_checkpoint(run_dir: Path) -> None:
    """Wait until a checkpoint of the run is recorded."""

    def is_there() -> bool:
        try:
            return bool(of(events_of(run_dir), m.CheckpointCommitted))
        except JournalError:  # its writer has not begun it yet
            return False

    wait_for(is_there, "a checkpoint")


def children_of(pid: int) -> list[int]:
    """Return the children of a process, of all of its threads."""
    return [int(one) for path in Path(f"/proc/{pid}/task").glob("*/children") for one in path.read_text().split()]


def words_of(pid: int) -> str:
    """Return the command line of a process."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
