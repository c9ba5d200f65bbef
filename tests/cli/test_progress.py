"""The output of `tolariad run` while it lasts: the bar, plain lines, notes, and how they share a terminal."""

from __future__ import annotations

import io
import logging
import os
import re
import subprocess
import sys
import threading
import tty

import msgspec
import pytest

from tests.control.fakes import Recorder
from tolariad.cli.progress import Progress
from tolariad.cli.status_words import status_row
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.telemetry.logs import DaemonLog


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def shown(recorder, *, rewrite, moments):
    """Return the output of progress for these statuses at these seconds."""
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream, rewrite=rewrite, clock=clock)
    for moment in moments:
        clock.now = moment
        progress(recorder.status())
        recorder.step()
    progress.end()
    return stream.getvalue()


@pytest.fixture
def restored_root_logger():
    """Give pytest its handlers back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def recorder(run_dir):
    made = Recorder(run_dir / "journal", segment_bytes=1 << 20)
    made.begin_run()
    yield made
    made.journal.close()


def test_progress_is_plain_lines_where_there_is_no_terminal(recorder):
    """A line when epoch or phase changes, and every few seconds otherwise; no control characters."""
    lines = shown(recorder, rewrite=False, moments=[n * 0.2 for n in range(25)]).splitlines()

    assert 3 <= len(lines) <= 8
    assert "epoch 2/3" in lines[-1] or "epoch 3/3" in lines[-1]
    assert all("\x1b" not in line and "\r" not in line for line in lines)
    for word in ("step", "loss", "acc", "lr", "steps/s", "left"):
        assert word in lines[-1]


def test_progress_says_it_is_alive_while_nothing_changes(recorder):
    """A paused run still prints a line every five seconds, and says for how long nothing has changed."""
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream, rewrite=False, clock=clock)
    for clock.now in (0.0, 1.0, 4.0, 5.5, 6.0, 11.0):
        progress(recorder.status())
    first, *further = stream.getvalue().splitlines()

    assert further == [f"{first}  (for 5 s)", f"{first}  (for 11 s)"]


def test_a_stage_is_printed_once_although_the_phase_changes_in_it(recorder):
    """A trainer builds its model while a run starts and while it recovers: that is one stage."""
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream, rewrite=False, clock=clock)
    status = msgspec.to_builtins(recorder.status())
    building = {"epoch": 0, "trainer": {**status["trainer"], "alive": True, "activity": "build"}}
    again = {"epoch": 2, "rerunning_to": 7}
    for fields in (building, again):
        for phase in ("starting", "recovering"):
            clock.now += 0.1
            progress.show({**status, **fields, "phase": phase, "said": []})

    assert [line.partition("  ")[0] for line in stream.getvalue().splitlines()] == [
        "building the model", "re-running up to step 7",
    ]  # fmt: skip


def test_progress_rewrites_one_line_on_a_terminal(recorder, monkeypatch):
    """Each state replaces the one before; nothing stays but notes. Every line fits, however narrow.

    Numbers come before the bar: it has the room that they leave.
    """
    for _ in range(9):
        recorder.step()
    for columns in (80, 60, 44, 20, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        rows = shown(recorder, rewrite=True, moments=[0.1, 0.2, 0.3]).split("\r\x1b[K")

        assert len(rows) == 5, "three states and the end"
        assert "\n" not in "".join(rows)
        assert all(len(row) < columns for row in rows)
        assert columns < 60 or all("step" in row and "loss" in row for row in rows[1:4])
        assert ("/s" in rows[3], "val_loss" in rows[3]) == (columns >= 80, columns >= 80)
        assert ("━" in rows[3], "lr " in rows[3]) == (columns == 120, columns == 120)


def test_the_speed_stays_longer_than_the_loss_of_the_validation(recorder):
    """Epoch, step, loss, accuracy, speed and time left are what a person looks for first."""
    recorder.step()
    status = {**msgspec.to_builtins(recorder.status()), "steps_per_s": 41.8, "eta_s": 8.0, "accuracy": 0.98}
    status["metrics"] = {"loss": 0.25, "accuracy": 0.98}
    whole = status_row(status)
    rows = [status_row(status, columns) for columns in range(len(whole), 20, -1)]

    assert "val_loss 0.25" in whole
    assert any("41.8 steps/s" in row and "val_loss" not in row for row in rows)
    assert not any("val_loss" in row and "41.8 steps/s" not in row for row in rows)


def test_the_start_is_named_by_its_phases(recorder):
    """Until there is an epoch, nothing else is shown; later the place, but no figures of before."""
    status = msgspec.to_builtins(recorder.status())
    trainer = {**status["trainer"], "alive": True}

    def row(**fields):
        return status_row({**status, "phase": "starting", **fields})

    assert row(epoch=0, trainer=None) == "starting the trainer"
    assert row(epoch=0, trainer={**trainer, "activity": "import"}) == "importing torch"
    assert row(epoch=0, trainer={**trainer, "activity": "build"}) == "building the model"
    assert row(epoch=2, trainer={**trainer, "alive": False}).startswith("starting the trainer  epoch 2/3  step ")
    assert row(epoch=2, rerunning_to=7).startswith("re-running up to step 7  epoch 2/3  step ")
    assert "loss" not in row(epoch=2)


def test_the_tasks_own_metrics_are_in_the_row(recorder):
    """By their names, after the loss; if the line is too narrow, they leave before the position."""
    recorder.step()
    metrics = {"loss": 0.25, "accuracy": 0.5, "r2": 0.75, "f1 \x1b": None}
    status = {**msgspec.to_builtins(recorder.status()), "phase": "running", "metrics": metrics}
    row = status_row(status)

    assert "val_loss 0.25  acc 50.00 %  r2 0.75  f1 \\x1b -" in row
    assert "r2" not in status_row(status, 60)
    assert "acc 50.00 %" in status_row(status, 60)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_bar_can_be_written_to_any_terminal(recorder, encoding):
    """A terminal without the bar's characters gets others."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    for _ in range(9):
        recorder.step()
    Progress(stream, rewrite=True)(recorder.status())

    assert (b"\xe2\x94\x81" in stream.buffer.getvalue()) is (encoding == "utf-8")
    assert b"--" in stream.buffer.getvalue() or encoding == "utf-8"
    assert b"epoch 1/3" in stream.buffer.getvalue()


def screen(written: str) -> list[str]:
    """Return the lines that a terminal shows after these bytes; it obeys line ends and the erasing of a line."""
    lines = [""]
    column = 0
    for mark in re.findall(r"\r|\n|\x1b\[K|\x1b\[[0-9;]*m|[^\r\n\x1b]", written):
        if mark == "\n":
            lines.append("")
        elif mark == "\r":
            column = 0
        elif mark == "\x1b[K":
            lines[-1] = lines[-1][:column]
        elif len(mark) == 1:
            lines[-1] = f"{lines[-1][:column]}{mark}{lines[-1][column + 1 :]}"
            column += 1
        assert column < 80, "nothing wraps"
    return lines


def test_the_bar_notes_and_the_log_do_not_garble_each_other(recorder, monkeypatch, restored_root_logger):
    """On one terminal of 80 columns, from two threads: every line that stays is whole, and the bar is the last."""
    monkeypatch.setenv("COLUMNS", "80")
    reader, terminal = os.openpty()
    tty.setraw(terminal)
    pieces = [b""]

    def read_all():
        while not pieces[-1].endswith(b"\x04"):
            pieces.append(os.read(reader, 4096))

    reading = threading.Thread(target=read_all, daemon=True)
    reading.start()
    log = DaemonLog("info", "auto", terminal)
    with os.fdopen(os.dup(terminal), "w", encoding="utf-8") as stream:
        progress = Progress(stream)
        for number in range(60):
            log.write(f"the task printed line {number}\n".encode())
            recorder.step()
            if number % 10 == 0:
                recorder.record(m.RunFrozen(why=f"reason {number}"))
            progress(recorder.status())
        log.close()  # its thread may be late, and what it writes takes the place of the bar
        progress(recorder.status())
    os.write(terminal, b"\x04")
    reading.join(60)
    lines = screen(b"".join(pieces).decode().removesuffix("\x04"))

    assert [one for one in lines if one.startswith("the task")] == [f"the task printed line {n}" for n in range(60)]
    assert sum(one.startswith("note: The run halted: reason") for one in lines) == 6
    whole = re.compile(r"the task printed line \d+|note: The run halted: reason \d+\..*|      .*|")
    assert [one for one in lines[:-1] if not whole.fullmatch(one)] == []
    assert lines[-1].startswith("frozen  epoch 6/3  step 60/30  loss ")


def test_a_run_that_is_no_terminal_loads_no_rich():
    """The daemon's log does not load it either, though structlog would."""
    code = (
        "import sys; from tolariad.cli.progress import Progress; import tolariad.daemon; print('rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)

    assert done.stdout == "False\n"


WHY = "divergence: loss 12.3456 at step 412, where 1.23456 was usual and 1.54321 the limit"
BACK = {"rollback": "r0001", "checkpoint": "c000004", "branch": 1, "parent": 0, "step": 200, "epoch": 2, "batch": 0}


@pytest.mark.parametrize("rewrite", [True, False])
def test_progress_says_at_once_and_once_what_the_run_did_on_its_own(recorder, rewrite):
    """Notes stay, within 80 columns on a terminal: none of an earlier start, none twice, and the number of those left
    out.
    """
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream, rewrite=rewrite, clock=clock)
    recorder.record(
        m.RunFrozen(why="of yesterday"),
        m.DaemonStarted(pid=1, boot_id="b", host="h", version="0.1", limits=m.ServiceLimits()),
    )
    progress(recorder.status())
    recorder.record(m.RolledBack(from_step=412, why=WHY, **BACK))
    for clock.now in (0.1, 0.2):
        progress(recorder.status())
    for number in range(st.LATEST_MAX + 3):
        recorder.record(m.ConservativeModeEntered(why=f"reason \x1b[2J {number}"))
    progress(recorder.status())
    progress.end()
    text = stream.getvalue().replace("\r\x1b[K", "\n").replace("\n\n", "\n")
    lines = text.splitlines()
    first = next(n for n, line in enumerate(lines) if "note: " in line)

    assert "yesterday" not in text
    assert "\x1b" not in text
    assert text.count("Rolled back") == 1
    shown = lines[first : first + 3] if rewrite else lines[first : first + 1]
    assert " ".join(line.removeprefix("note:").strip() for line in shown) == (
        f"Rolled back from step 412 to step 200 (c000004) and abandoned 212 steps: {WHY}."
    )
    # A file is searched by line; only a terminal has an edge.
    wrapped = [line for line in lines if line.startswith(("note: ", "      ")) and "`tolaria" not in line]
    assert (max(map(len, wrapped)) <= 80) == rewrite
    assert text.count("note: 3 earlier ") == 1
    assert sum("Conservative mode is on" in line for line in lines) == st.LATEST_MAX


def test_corrections_of_rates_are_said_once_and_then_counted(recorder):
    """A hook that sets a rate at every step must not hide everything else; other notes are said as before."""
    stream = io.StringIO()
    progress = Progress(stream, rewrite=False)
    for step in range(1, 30):
        recorder.record(m.LrViolationDetected(group="default", what="the rate was changed", step=step))
        progress(recorder.status())
    recorder.record(m.RolledBack(from_step=412, why=WHY, **BACK))
    progress(recorder.status())
    notes = [line for line in stream.getvalue().splitlines() if line.startswith("note: ")]

    assert [line.split()[1] for line in notes] == ["Corrected", "9", "19", "Rolled"]


@pytest.mark.parametrize("every", [1, 7, 100, 300])
@pytest.mark.parametrize("rewrite", [True, False])
def test_of_hundreds_of_skipped_batches_the_first_is_printed_and_the_others_are_counted(recorder, every, rewrite):
    """However many come between two looks at the run: the status holds sixteen of them. None is lost, and a rollback
    stands at its place.
    """
    stream = io.StringIO()
    progress = Progress(stream, rewrite=rewrite)
    recorder.record(m.RolledBack(from_step=412, why="earlier", **BACK))
    progress(recorder.status())
    skip = m.StepSkipped(step=9, epoch=1, batch=1, loss=1e9, grad_norm=1e9, reason=m.SkipReason.SPIKE)
    for number in range(1, 301):
        recorder.record(msgspec.structs.replace(skip, batch=number))
        if not number % every:
            progress(recorder.status())
    recorder.record(m.RolledBack(from_step=412, why=WHY, **BACK))
    progress(recorder.status())
    progress.end()
    text = stream.getvalue()
    counts = [int(one) for one in re.findall(r"(\d+) more skipped batches, the newest at step 9", text)]

    assert text.count("note: Skipped batch") == 1
    assert len(counts) <= 3
    assert sum(counts) == 299
    assert text.rindex("more skipped") < text.rindex("Rolled back")
    assert "earlier note" not in text


def test_a_row_that_is_too_long_loses_the_rate_first(recorder):
    """Then the speed is dropped, but never the position or the time left."""
    recorder.step()
    status = {**msgspec.to_builtins(recorder.status()), "steps_per_s": 86.4, "eta_s": 17.0, "phase": "running"}
    whole = status_row(status)

    assert "  lr " in whole
    assert "steps/s" in whole
    assert "  lr " not in status_row(status, len(whole) - 1)
    assert "steps/s" in status_row(status, len(whole) - 1)
    assert "steps/s" not in status_row(status, 40)
    assert "left" in status_row(status, 40)
