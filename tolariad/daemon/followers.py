"""The followers that start with a run (key `follow`): `tolaria follow` in processes of their own.

Promises: the run waits for none of them, only the daemon's end does, for a stated time. One that fails is started
again, later each time; one that cannot work, because its package is missing, is said once. A follower whose daemon was
killed ends by itself: its stdin is closed then.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tolariad import run_files
from tolariad.cli.errors import Exit
from tolariad.core.calc.settings.followers import Follow
from tolariad.core.calc.text.plain import safe
from tolariad.signals import kept_from_new_processes
from tolariad.supervisor.process import child_environment

_log: Final = logging.getLogger(__name__)
_PACKAGE: Final = str(Path(__file__).parents[2])
_LOOK_S: Final = 1.0
_AGAIN_S: Final = 5.0
_AGAIN_MAX_S: Final = 300.0
# What an output may need to take the last numbers: an upload, for example.
_END_S: Final = 20.0
_SAY_S: Final = 2.0
_LOG_BYTES_MAX: Final = 1 << 20
# Exit codes with which another try would end the same way.
_FOR_GOOD: Final = (Exit.DONE, Exit.USAGE, Exit.REFUSED)


class _Follower:
    def __init__(self, wanted: Follow, run_dir: Path) -> None:
        self.to = wanted.to
        self._run_dir = run_dir
        self._log_name = f"logs/follow-{wanted.to}.log"
        options = (("--uri", wanted.uri), ("--project", wanted.project))
        self._command = (
            *(sys.executable, "-P", "-m", "tolariad.cli.following", "--dir", str(run_dir)),
            *("--to", wanted.to),
            *(f"{option}={value}" for option, value in options if value),
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._fails = 0
        self._due = 0.0
        self._is_done = False

    def look(self) -> None:
        """Start the process if it is due. If it has ended, decide when it starts again."""
        if self._is_done:
            return
        if self._process is None:
            if time.monotonic() >= self._due:
                self._start()
        elif (code := self._process.poll()) is not None:
            self._ended(code)

    def _start(self) -> None:
        before = os.environ.get("PYTHONPATH")
        path = os.pathsep.join(filter(None, (_PACKAGE, before)))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        descriptor = run_files.open_file(self._run_dir, self._log_name, flags)
        try:
            if os.fstat(descriptor).st_size > _LOG_BYTES_MAX:
                os.ftruncate(descriptor, 0)
            with kept_from_new_processes():
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=descriptor,
                    stderr=descriptor,
                    env=child_environment(os.environ) | {"PYTHONPATH": path},
                    # ^C in a terminal is for the daemon, which tells the follower when the run has ended.
                    start_new_session=True,
                )
        finally:
            os.close(descriptor)

    def _ended(self, code: int) -> None:
        self._let_go()
        self._is_done = code in _FOR_GOOD
        self._fails += 1
        again_s = min(_AGAIN_S * 2 ** (self._fails - 1), _AGAIN_MAX_S)
        self._due = time.monotonic() + again_s
        if code != Exit.DONE:
            after = "It is not started again" if self._is_done else f"It starts again in {again_s:.0f} s"
            _log.warning("The follower to %s ended (code %d): %s. %s.", self.to, code, self._last_words(), after)

    def _last_words(self) -> str:
        try:
            lines = run_files.read_file(self._run_dir, self._log_name, 2 * _LOG_BYTES_MAX).decode(errors="replace")
        except OSError as error:
            return f"its log cannot be read: {error}"
        said = [line for line in lines.splitlines() if line.strip()]
        return safe(said[-1].strip()) if said else "it said nothing"

    def _let_go(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None

    def tell_the_end(self) -> None:
        """Close its stdin: the run has ended."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def has_ended(self, until: float) -> bool:
        """Wait for its end, up to this time, and return whether it has ended."""
        if self._process is not None:
            try:
                self._process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                return False
        return True

    def wait(self, until: float) -> None:
        """Wait for its end, and kill it if it has not ended then."""
        if not self.has_ended(until) and self._process is not None:
            self._process.kill()
            self._process.wait()
            _log.warning(
                "The follower to %s did not end in %.0f s. `tolaria follow %s --to %s` copies the rest",
                *(self.to, _END_S, safe(str(self._run_dir)), self.to),
            )


class Followers:
    """The followers of one run. `keep` runs on the event loop; `close` may be called in a thread, after it."""

    def __init__(self, wanted: Sequence[Follow], run_dir: Path) -> None:
        self._all = [_Follower(one, run_dir) for one in wanted]

    async def keep(self) -> None:
        """Start them, and start those again that fail."""
        while self._all:
            for one in self._all:
                try:
                    one.look()
                except OSError as error:
                    _log.warning("The follower to %s cannot be started: %s", one.to, error)
            await asyncio.sleep(_LOOK_S)

    def close(self) -> None:
        """Let them copy the rest, for a stated time, and end."""
        for one in self._all:
            one.tell_the_end()
        begun = time.monotonic()
        late = [one for one in self._all if not one.has_ended(begun + _SAY_S)]
        if late:
            names = ", ".join(one.to for one in late)
            _log.warning("The followers to %s still copy the end of the run: they have %.0f s", names, _END_S)
        for one in late:
            one.wait(begun + _END_S)
