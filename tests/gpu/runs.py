"""A run of the commands, as a user starts it: a daemon, its trainer, and `tolaria`'s orders. Its journal is read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from journal import JournalMissing
from tests.recorded import events_of, files_of, of
from tolariad.core import messages as m

PATIENCE_S = 150.0
_LOOK_S = 0.25
_TASK = Path(__file__).with_name("gpt.py")


class Unexpected(Exception):
    """A run did something else than it should. The text says what."""


class Run:
    """One run in a folder of its own. `settings`: keys of the configuration, written with dots."""

    def __init__(self, folder: Path, device: str, options: dict[str, Any], **settings: Any) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        keys = {"task": f"{_TASK}:Task", "task_options": options, "device": device, "rng_seed": 7, **settings}
        config: dict[str, Any] = {}
        for key, value in keys.items():
            at = config
            *sections, name = key.split(".")
            for section in sections:
                at = at.setdefault(section, {})
            at[name] = value
        # JSON is YAML.
        (folder / "run.yaml").write_bytes(msgspec.json.encode({"tolaria": config}))
        self.dir = folder / "run"
        self._daemon: subprocess.Popen[bytes] | None = None

    def start(self, *more: str) -> None:
        """Start the daemon, or start it again."""
        log = (self.folder / "daemon.log").open("ab")
        command = _command("tolariad", "run", str(self.folder / "run.yaml"), "--dir", str(self.dir), *more)
        # In this process's group: whoever ends that ends the run too.
        self._daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def order(self, *words: str) -> None:
        """Give an order with `tolaria`, and wait for its outcome. Raises Unexpected."""
        found = subprocess.run(
            _command("tolaria", "--dir", str(self.dir), *words), capture_output=True, text=True, timeout=PATIENCE_S
        )
        if found.returncode:
            raise Unexpected(f"tolaria {words[0]}: {found.stderr.strip() or found.stdout.strip()}")

    def events(self) -> list[m.Event]:
        """Return the events so far."""
        try:
            return events_of(self.dir) if (self.dir / "journal").is_dir() else []
        except JournalMissing:
            return []

    def until(self, what: str, holds: Callable[[Sequence[m.Event]], Any]) -> Any:
        """Return what `holds` finds in the events, as soon as it finds something. Raises Unexpected."""
        give_up = time.monotonic() + PATIENCE_S
        while not (found := holds(self.events())):
            if self._daemon is not None and self._daemon.poll() is not None:
                if found := holds(self.events()):
                    break
                raise Unexpected(f"the daemon ended with {self._daemon.returncode} before {what}: {self.said()}")
            if time.monotonic() > give_up:
                raise Unexpected(f"{what} did not come about: {self.said()}")
            time.sleep(_LOOK_S)
        return found

    def step(self, number: int) -> None:
        """Wait for this step."""
        self.until(f"step {number}", lambda events: any(one.step >= number for one in of(events, m.StepCompleted)))

    def finish(self) -> list[m.Event]:
        """Wait for the end, which must be the completion, and return all events. Raises Unexpected."""
        assert self._daemon is not None
        try:
            code = self._daemon.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise Unexpected(f"the run does not end: {self.said()}") from None
        events = self.events()
        if code or not of(events, m.RunCompleted):
            raise Unexpected(f"the run ended with {code}: {self.said()}")
        return events

    def kill_trainer(self) -> None:
        """Kill it with SIGKILL."""
        os.kill(int((self.dir / "trainer.lock").read_text()), signal.SIGKILL)

    def kill_daemon(self) -> None:
        """Kill it with SIGKILL. The trainer ends with it."""
        assert self._daemon is not None
        self._daemon.kill()
        self._daemon.wait()

    def end_files(self) -> dict[str, bytes]:
        """Return the content of the last checkpoint, without ids and times."""
        last = of(self.events(), m.CheckpointCommitted)[-1]
        return files_of(self.dir / "checkpoints" / last.id)

    def said(self) -> str:
        """Return the end of what the daemon printed."""
        text = (self.folder / "daemon.log").read_text(errors="replace").strip()
        return " / ".join(text.splitlines()[-4:])[-600:]


def _command(program: str, *arguments: str) -> list[str]:
    """Return a command that does not need the project to be installed."""
    return [sys.executable, "-c", f"import sys; from tolariad.cli.{program} import main; sys.exit(main())", *arguments]


def differing(one: dict[str, bytes], other: dict[str, bytes]) -> list[str]:
    """Return the names of the files that differ."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
