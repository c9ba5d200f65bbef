"""Start runs of the task with trouble, give them orders, and wait for what they record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tolariad.forensics.why import is_topic

TASK = Path(__file__).with_name("task.py")
_RUN = [sys.executable, "-c", "from tolariad.cli.tolariad import main; main()"]
_ASK = [sys.executable, "-c", "from tolariad.cli.tolaria import main; main()"]
_COMMON = (
    *(f"task={TASK}:Troubled", "epochs=6", "batch_size=32", "rng_seed=7", "learning_rate.warmup_epochs=0"),
    *("checkpoint.interval_steps=20", "checkpoint.min_gap_s=0", "optimizer.name=adam"),
    *("learning_rate.base_lr=0.003", "torch_threads=1"),
)
_OVER = ("completed", "failed", "stopped")
_LOOK_S = 0.2


class Making:
    """One run that is being made. `library`: a folder with libraries of the task, which comes first on the path."""

    def __init__(self, folder: Path, name: str, *sets: str, library: Path | None = None) -> None:
        self.run = folder / name
        words = [word for one in (*_COMMON, *sets) for word in ("--set", one)]
        command = [*_RUN, "run", "--dir", str(self.run), *words]
        log = (folder / f"{name}.log").open("ab")
        self._process = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=folder, env=environment(library)
        )

    def status(self) -> dict[str, Any]:
        """Return what `tolaria status --json` prints; {} if it cannot be asked yet."""
        found: dict[str, Any] = json.loads(_asked(self.run, "status", "--json").stdout or b"{}")
        return found

    def reached(self, step: int) -> None:
        """Wait until the run has made a step, or has ended."""
        while (now := self.status()).get("step", 0) < step and not self._is_over(now):
            time.sleep(_LOOK_S)

    def recorded(self, event: str) -> None:
        """Wait until the run has recorded an event of a type or a topic of `tolaria why`, or has ended."""
        if not is_topic(event):
            raise ValueError(f"no event type and no topic: {event}")
        while _asked(self.run, "why", event).returncode and not self._is_over(self.status()):
            time.sleep(_LOOK_S)

    def acted(self, topic: str) -> None:
        """Wait until the newest order of a topic has acted or was refused, or the run has ended."""
        while not self._is_over(self.status()):
            told = json.loads(_asked(self.run, "why", topic, "--json").stdout or b"{}")
            if told and told["event"]["type"] != "OrderGiven":
                return
            time.sleep(_LOOK_S)

    def ordered(self, *words: str) -> None:
        """Give an order, and print what came of it."""
        subprocess.run([*_ASK, *words, "--dir", str(self.run)], check=False, env=environment())

    def ended(self) -> None:
        """Wait until the run has ended."""
        self._process.wait()

    def _is_over(self, status: dict[str, Any]) -> bool:
        return status.get("phase") in _OVER or self._process.poll() is not None


def _asked(run: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    command = [*_ASK, *words, "--dir", str(run)]
    return subprocess.run(command, capture_output=True, check=False, env=environment())


def environment(library: Path | None = None) -> dict[str, str]:
    """Return the environment of a program that imports what this one does, and the task's library first."""
    first = [str(library)] if library is not None else []
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*first, *(path for path in sys.path if path)])}
