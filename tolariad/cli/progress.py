"""The output of `tolariad run` and `tolaria watch`: progress while the run lasts; and the summary of `tolariad run`.

On a terminal one line with a bar is rewritten; otherwise plain lines are printed, every few seconds. Each event that
matters is printed at once, on a line that stays. The summary names the journal, its size, whether it verifies, and
commands to try next.

Promises: a write to the terminal begins with a clean line. It ends at the end of that line or at the start of a new
one. So lines of other writers do not mix with it. The first bar loads rich.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO

import msgspec

from journal.verification import Verdict, verify
from tolariad.cli.output import OWN_MARKS, colours_wanted, counted, duration, number, on_disk
from tolariad.cli.status_words import figures, fitted, place, said_lines, stage, status_row
from tolariad.cli.wrapping import named, width
from tolariad.control.replies import RunStatus
from tolariad.core import messages as m
from tolariad.core.calc.text.phrases import with_run
from tolariad.core.calc.text.plain import plain
from tolariad.core.calc.text.repeats import Repeats, Told, calm, heard, is_counted, rest
from tolariad.forensics.words import safe

if TYPE_CHECKING:
    from rich.console import Console

_PLAIN_S: Final = 2.0
_SILENT_S: Final = 5.0
_BAR_MIN: Final = 4
_BAR_MAX: Final = 40
_CLEAN: Final = "\r\x1b[K"


class Progress:
    """Prints a run's progress. The daemon calls it with the status several times a second; `last` is the newest.

    `silent_s`: on a stream that is no terminal, a line is printed after this many seconds even if nothing changed.
    `is_shown` false: nothing is printed, and only the newest status is kept.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        rewrite: bool | None = None,
        is_shown: bool = True,
        silent_s: float = _SILENT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.last: RunStatus | None = None
        self._status: Mapping[str, Any] | None = None
        self._stream = stream if stream is not None else sys.stdout
        self._rewrite = self._stream.isatty() if rewrite is None else rewrite
        self._is_shown = is_shown
        self._silent_s = silent_s
        self._clock = clock
        self._shown: tuple[str, int] | None = None
        self._row_shown, self._row_since = "", 0.0
        self._shown_at = float("-inf")
        self._open = False
        self._said = 0
        self._repeats = Repeats()
        self._counts: dict[str, int] = {}
        self._console: Console | None = None

    def __call__(self, status: RunStatus) -> None:
        """Show `status`, and keep it as the last one."""
        self.last = status
        if self._is_shown:
            self.show(msgspec.to_builtins(status))

    def show(self, status: Mapping[str, Any]) -> None:
        """Show a status. On a stream that is no terminal: soon if the stage or the epoch changed, else now and then."""
        self._status = status
        self._say(status)
        if self._rewrite:
            # A terminal can be resized at any time. The last column stays free: some terminals wrap after it.
            self._put(self._bar(status, shutil.get_terminal_size().columns - 1), stays=False)
            return
        now = self._clock()
        state = (stage(status), int(status["epoch"]))
        elapsed_s = now - self._shown_at
        is_new = self._shown is None or self._shown[0] != state[0]
        if is_new or elapsed_s >= self._silent_s or (state != self._shown and elapsed_s >= _PLAIN_S):
            self._shown, self._shown_at = state, now
            self._put(self._row(status_row(status), now), stays=True)

    def _row(self, row: str, now: float) -> str:
        """Return the row; if it was the last one too, with the time since it was first shown."""
        if row != self._row_shown:
            self._row_shown, self._row_since = row, now
            return row
        return f"{row}  (for {duration(now - self._row_since)})"

    def _say(self, status: Mapping[str, Any]) -> None:
        """Print the new events of this start. Those that come again and again are counted."""
        new = [one for one in status["said"] if one["number"] > self._said and one["start"] == status["starts"]]
        if not new:
            self._note(status, calm(self._repeats, status["step"]))
            return
        missed = new[-1]["number"] - self._said - len(new) if self._said else 0
        left_out = self._left_out(status, new)
        if (others := missed - sum(left_out.values())) > 0:
            text = f"{counted(others, 'earlier note')} left out; `tolaria events RUN` lists them"
            self._note(status, (self._repeats, (text,)))
        for one in new:
            many = 1 + left_out.pop(one["event"], 0)
            self._note(status, heard(self._repeats, one["event"], one.get("step"), one["text"], many))
        self._said = new[-1]["number"]

    def _left_out(self, status: Mapping[str, Any], new: list[Any]) -> dict[str, int]:
        """Return how many events of each counted kind came since the last status, and are not among its new ones."""
        known, self._counts = self._counts, {one["event"]: one["count"] for one in status["troubles"]}
        if not self._said:
            return {}
        shown = [one["event"] for one in new]
        kinds = {kind for kind in shown if is_counted(kind)}
        return {kind: max(0, self._counts.get(kind, 0) - known.get(kind, 0) - shown.count(kind)) for kind in kinds}

    def _note(self, status: Mapping[str, Any], told: Told) -> None:
        """Print lines that stay."""
        self._repeats, texts = told
        columns = shutil.get_terminal_size().columns - 1
        for text in (with_run(one, status["dir"]) for one in texts):
            # Wrap on a terminal only: a file is searched line by line.
            for line in said_lines(text, "note: ", columns) if self._rewrite else [f"note: {safe(text)}"]:
                self._put(line, stays=True)

    def _bar(self, status: Mapping[str, Any], columns: int) -> str:
        """Return the line of a terminal: place, bar, figures. The bar has the room that the figures leave, or none."""
        where = place(status)
        short = [(rank, text.replace(" steps/s", "/s")) for rank, text in figures(status)]
        told = fitted(short, max(0, columns - width(where) - 2))
        total = status["steps_total"]
        room = columns - width(where) - sum(width(one) + 2 for one in told) - 2
        if not total or not status["epoch"] or room < _BAR_MIN:
            row = "  ".join([where, *told])
            return row if width(row) <= columns else OWN_MARKS.sub("", row)[:columns]
        return "  ".join([where, self._drawn(status["step"] / total, min(room, _BAR_MAX)), *told])

    def _drawn(self, share: float, columns: int) -> str:
        from rich.progress_bar import ProgressBar

        if self._console is None:
            from rich.console import Console

            colours: Literal["standard"] | None = "standard" if colours_wanted(self._stream) else None
            self._console = Console(file=self._stream, force_terminal=True, color_system=colours, width=_BAR_MAX)
        with self._console.capture() as drawn:
            self._console.print(ProgressBar(total=1.0, completed=share, width=columns), end="")
        # Without colours rich leaves out the rest of the bar.
        return drawn.get().ljust(columns)

    def _put(self, row: str, *, stays: bool) -> None:
        clean = _CLEAN if self._rewrite else ""
        self._stream.write(f"{clean}{row}\n" if stays or not self._rewrite else f"{clean}{row}")
        self._stream.flush()
        self._open = not stays and self._rewrite

    def end(self) -> bool:
        """Print the counts that are pending. Clear the rewritten line. Return whether there was one."""
        was_open = self._open
        if self._status is not None:
            self._note(self._status, rest(self._repeats))
        if self._open:
            self._open = False
            self._stream.write(_CLEAN)
            self._stream.flush()
        return was_open


def closing_status(status: RunStatus, run_dir: Path) -> tuple[dict[str, Any], bool]:
    """Return the summary of `tolariad run` as plain values, and whether the journal verifies."""
    verdict = verify(run_dir / "journal").verdict
    told: dict[str, Any] = plain(msgspec.to_builtins(status))
    return {**told, "verdict": verdict.value}, verdict is Verdict.CLEAN


def closing_words(status: RunStatus, run_dir: Path) -> tuple[list[str], bool]:
    """Return the summary of `tolariad run` as lines, and whether the journal verifies."""
    path = run_dir / "journal"
    report = verify(path)
    clean = report.verdict is Verdict.CLEAN
    found = "verifies" if clean else f"does NOT verify ({report.verdict.value})"
    lines = [
        *(_ended(status), *([safe(status.detector)] if status.detector else [])),
        f"journal    {path}: {counted(report.events, 'event')}, {on_disk(report.file_bytes, report.bytes)}, {found}",
    ]
    if report.problem is not None:
        lines.append(f"           {report.problem.sentence}")
    return [*lines, *_next(status, run_dir)], clean


def _ended(status: RunStatus) -> str:
    done = f"{counted(status.step, 'step')} in {status.epoch} of {counted(status.epochs, 'epoch')}"
    words = f"{status.phase}: {safe(status.name)}, {done}"
    if status.accuracy is not None:
        words += f", validation accuracy {100 * status.accuracy:.2f} %"
    elif status.metrics:
        words += ", validation " + ", ".join(f"{named(name)} {number(of)}" for name, of in status.metrics.items())
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
        yield f"  {tolariad} run --dir {run_dir} {_more(status)}"
    elif status.phase == "failed" and not status.step:
        yield f"  {tolaria} why {run_dir} failure"
        yield "  correct it, then give the same command again: the run begins anew"
    elif status.phase == "failed":
        yield f"  {tolaria} why {run_dir} failure"
        again = f"  {tolariad} run --dir {run_dir}"
        if status.failure == m.FailureKind.DATA.value:
            yield f"{again} --retry         (with the former data)"
            yield f"{again} --accept-data   (with the new data)"
        elif status.failure == m.FailureKind.CODE.value:
            yield f"{again} --retry         (with the former code)"
            yield f"{again} --accept-code   (with the new code: steps that are made again may differ)"
        elif status.failure == m.FailureKind.DIVERGED.value:
            yield f"{again} --retry   (goes on with the difference; later ones are only recorded)"
        else:
            yield f"{again} --retry"
    elif status.phase == "frozen":
        # A start does not end a freeze; an operator must resume the run.
        yield f"  {tolaria} why {run_dir} freeze"
        yield f"  {tolariad} run --dir {run_dir}, then {tolaria} resume --dir {run_dir}"
    else:
        yield f"  {tolaria} why {run_dir} phase"
        yield f"  {tolariad} run --dir {run_dir}"


def _more(status: RunStatus) -> str:
    """Return the arguments with which a complete run goes on: what ended it, twice as far."""
    ended_by_steps = status.steps_total == status.step < status.epochs * (status.steps_per_epoch or 0)
    if ended_by_steps and status.step % (status.steps_per_epoch or 1):
        return f"--set stop.steps={2 * status.step}   (goes on with more steps)"
    return f"--epochs {2 * status.epochs}   (goes on with more epochs)"


def _typed(command: str) -> str:
    """Return the command as it can be typed here: its name, or its path if $PATH does not lead to it."""
    beside = Path(sys.argv[0]).with_name(command)
    return str(beside) if shutil.which(command) is None and beside.exists() else command
