"""The output of `tolariad run`: progress while it runs, and a summary at its end.

On a terminal one line is rewritten; otherwise plain lines are printed, at most two a second. Each action that the run
takes by itself is printed at once, on a line that stays. The summary names the journal, its size, whether it verifies,
and commands to try next.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TextIO

import msgspec

from journal.verification import Verdict, verify
from tolariad.cli.output import counted, size
from tolariad.cli.status_words import said_lines, status_row
from tolariad.control.status import RunStatus
from tolariad.forensics.words import safe

_PLAIN_S: Final = 0.5
_SILENT_S: Final = 10.0


class Progress:
    """Prints a run's progress. The daemon calls it with the status several times a second; `last` is the newest."""

    def __init__(
        self, stream: TextIO | None = None, *, rewrite: bool | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.last: RunStatus | None = None
        self._stream = stream if stream is not None else sys.stdout
        self._rewrite = self._stream.isatty() if rewrite is None else rewrite
        self._clock = clock
        self._shown: tuple[str, int, float | None] | None = None
        self._shown_at = float("-inf")
        self._open = False
        self._said = 0

    def __call__(self, status: RunStatus) -> None:
        """Show `status`: at once if the phase changed, soon if the epoch did, else from time to time."""
        self.last = status
        self._say(status)
        now = self._clock()
        state = (status.phase, status.epoch, status.accuracy)
        elapsed_s = now - self._shown_at
        new_phase = self._shown is None or self._shown[0] != status.phase
        if new_phase or (state != self._shown and elapsed_s >= _PLAIN_S) or elapsed_s >= _SILENT_S:
            self._shown, self._shown_at = state, now
            self._put(self._row(status), stays=True)
        elif self._rewrite:
            self._put(self._row(status), stays=False)

    def _say(self, status: RunStatus) -> None:
        """Print the new actions of this start. Those that the status no longer holds are only counted."""
        new = [one for one in status.said if one.number > self._said and one.start == status.starts]
        if not new:
            return
        missed = new[-1].number - self._said - len(new) if self._said else 0
        if missed > 0:
            self._put(f"note: {counted(missed, 'earlier note')} left out; `tolaria events` lists them", stays=True)
        for one in new:
            # Wrap on a terminal only: a file is searched line by line.
            for line in said_lines(one.text, "note: ") if self._rewrite else [f"note: {safe(one.text)}"]:
                self._put(line, stays=True)
        self._said = new[-1].number

    def _row(self, status: RunStatus) -> str:
        columns = shutil.get_terminal_size().columns - 1 if self._rewrite else None
        return status_row(msgspec.to_builtins(status), columns)

    def _put(self, row: str, *, stays: bool) -> None:
        if self._rewrite:
            row = f"\r\x1b[K{row if stays else row[: shutil.get_terminal_size().columns - 1]}"
        self._stream.write(f"{row}\n" if stays or not self._rewrite else row)
        self._stream.flush()
        self._open = not stays and self._rewrite

    def end(self) -> None:
        """Clear the rewritten line, so that what follows begins on an empty one."""
        if self._open:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._open = False


def closing_words(status: RunStatus, run_dir: Path) -> tuple[list[str], bool]:
    """Return the summary of `tolariad run` as lines, and whether the journal verifies."""
    path = run_dir / "journal"
    report = verify(path)
    clean = report.verdict is Verdict.CLEAN
    found = "verifies" if clean else f"does NOT verify ({report.verdict.value})"
    lines = [
        _ended(status),
        f"journal    {path}: {counted(report.events, 'event')}, {size(report.bytes)}, {found}",
    ]
    if report.problem is not None:
        lines.append(f"           {report.problem.sentence}")
    return [*lines, *_next(status, run_dir)], clean


def _ended(status: RunStatus) -> str:
    words = f"{status.phase}: {safe(status.name)}, {status.step} steps in {status.epoch} of {status.epochs} epochs"
    if status.accuracy is not None:
        words += f", validation accuracy {100 * status.accuracy:.2f} %"
    if status.phase == "frozen" and status.frozen:
        return f"{words}\n{safe(status.frozen)}"
    if status.phase == "stopped" and (unsaved := _unsaved(status)):
        return f"{words}\n{unsaved}"
    return words if status.last_error is None or status.phase != "failed" else f"{words}\n{safe(status.last_error)}"


def _unsaved(status: RunStatus) -> str:
    """Return the warning for a stop whose last checkpoint was given up, or the empty string."""
    newest = status.checkpoint
    if newest is None:
        return f"no checkpoint is usable: {safe(status.checkpoint_none)}" if status.checkpoint_none else ""
    if not newest.given_up or newest.step >= status.step:
        return ""
    continues = f"the next start continues from step {newest.step + 1}"
    return f"the last checkpoint was given up: {safe(newest.given_up)}; {continues}"


def _next(status: RunStatus, run_dir: Path) -> Iterator[str]:
    tolaria, tolariad = _typed("tolaria"), _typed("tolariad")
    yield "try next"
    yield f"  {tolaria} events {run_dir} -n 20"
    if status.phase == "completed":
        yield f"  {tolaria} why {run_dir} checkpoint"
        yield f"  {tolaria} state {run_dir} --at step:{max(1, status.step // 2)}"
        yield f"  {tolariad} run --dir {run_dir} --epochs {2 * status.epochs}   (goes on with more epochs)"
    elif status.phase == "failed":
        yield f"  {tolaria} why {run_dir} failure"
        yield f"  {tolariad} run --dir {run_dir} --retry"
    elif status.phase == "frozen":
        # A start does not end a freeze; an operator must resume the run.
        yield f"  {tolaria} why {run_dir} freeze"
        yield f"  {tolariad} run --dir {run_dir}, then {tolaria} resume --dir {run_dir}"
    else:
        yield f"  {tolaria} why {run_dir} phase"
        yield f"  {tolariad} run --dir {run_dir}"


def _typed(command: str) -> str:
    """Return the command as it can be typed here: its name, or its path if $PATH does not lead to it."""
    beside = Path(sys.argv[0]).with_name(command)
    return str(beside) if shutil.which(command) is None and beside.exists() else command
