"""A log line never waits for whoever reads the log."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from tests.waiting import wait_for
from tolariad.telemetry.logs import DaemonLog
from tolariad.telemetry.writer import BoundedWriter


@pytest.fixture
def root_logger():
    """Give pytest its handlers back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def read_all(descriptor: int) -> bytes:
    os.set_blocking(descriptor, False)
    pieces = []
    while True:
        try:
            piece = os.read(descriptor, 65536)
        except BlockingIOError:
            break
        if not piece:
            break
        pieces.append(piece)
    return b"".join(pieces)


def test_json_lines_hold_level_name_text_and_traceback(root_logger):
    """If it is asked for, a record is one JSON object on one line, its traceback inside."""
    reader, writer_end = os.pipe()
    writer = DaemonLog("info", "json", writer_end)
    log = logging.getLogger("tolariad.test")
    log.debug("not this")
    try:
        raise ValueError("poison")
    except ValueError:
        log.exception("caught %s", "it", extra={"step": 7})
    writer.close()
    lines = [json.loads(line) for line in read_all(reader).splitlines()]
    assert len(lines) == 1
    assert (lines[0]["event"], lines[0]["level"], lines[0]["logger"], lines[0]["step"]) == (
        "caught it",
        "error",
        "tolariad.test",
        7,
    )
    assert "ValueError: poison" in lines[0]["exception"]
    stamp = datetime.strptime(lines[0]["timestamp"], "%Y-%m-%dT%H:%M:%S.%f%z")
    assert re.fullmatch(r"[0-9T:-]{19}\.[0-9]{6}Z", lines[0]["timestamp"])
    assert abs(datetime.now(UTC) - stamp) < timedelta(minutes=5)


def test_run_and_step_are_in_every_record(root_logger):
    """Also in records of other libraries and of other threads; the step is the one of the moment."""
    reader, writer_end = os.pipe()
    log = DaemonLog("info", "json", writer_end)
    step = 4
    log.bind(lambda: {"run": "digits", "step": step})
    logging.getLogger("somebody.else").info("before")
    step = 5
    thread = threading.Thread(target=logging.getLogger("tolariad.kernel").info, args=("after",))
    thread.start()
    thread.join()
    logging.getLogger("tolariad").info("its own", extra={"step": 3})
    log.close()
    records = [json.loads(line) for line in read_all(reader).splitlines()]

    assert [(one["event"], one["run"], one["step"]) for one in records] == [
        ("before", "digits", 4),
        ("after", "digits", 5),
        ("its own", "digits", 3),
    ]


def test_a_pipe_gets_the_lines_of_a_terminal(root_logger, monkeypatch):
    """`make run | tee`: warnings as one short line each, not broken, and no JSON among a person's lines."""
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    reader, writer_end = os.pipe()
    log = DaemonLog("info", "auto", writer_end)
    log.bind(lambda: {"run": "digits", "step": 4})
    logging.getLogger("tolariad").info("Trainer 1 started as pid 7")
    logging.getLogger("tolariad").warning("a long sentence, " * 20)
    log.close()

    assert read_all(reader).decode() == "warning: " + "a long sentence, " * 20 + "\n"


def test_a_service_manager_without_a_journal_gets_json(root_logger, monkeypatch):
    """As one that collects what its services print."""
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/notify")
    reader, writer_end = os.pipe()
    log = DaemonLog("info", "auto", writer_end)
    logging.getLogger("tolariad").info("first")
    log.close()

    assert json.loads(read_all(reader))["event"] == "first"


def test_the_format_changes_while_the_log_is_open(root_logger):
    """From JSON to text and back, with the level."""
    reader, writer_end = os.pipe()
    log = DaemonLog("info", "json", writer_end)
    log.bind(lambda: {"run": "digits", "step": 4})
    logging.getLogger("tolariad").info("first")
    log.configure("debug", "text")
    logging.getLogger("tolariad").debug("second")
    log.configure("info", "json")
    logging.getLogger("tolariad").info("third")
    log.close()
    first, second, third = read_all(reader).decode().splitlines()

    assert [json.loads(one)["event"] for one in (first, third)] == ["first", "third"]
    assert not second.startswith("{")
    assert "second" in second
    assert "run=digits step=4" in second


def test_a_terminal_gets_text_on_a_line_of_its_own(root_logger):
    """On a terminal a record is text, and first clears the line that a progress display may have begun."""
    reader, terminal = os.openpty()
    writer = DaemonLog("info", "auto", terminal)
    logging.getLogger("tolariad.test").warning("slow disk")
    writer.close()
    text = read_all(reader)
    assert text.startswith(b"\r\x1b[K")
    assert b"slow disk" in text
    assert b'{"event"' not in text
    os.close(terminal)
    os.close(reader)


@pytest.mark.parametrize(("level", "verbose"), [("info", False), ("info", True), ("debug", False)])
def test_a_terminal_shows_loggers_and_ids_only_if_asked(root_logger, level, verbose):
    """Otherwise warnings and errors as plain lines, none that an event tells too, and nothing that a terminal obeys."""
    reader, terminal = os.openpty()
    log = DaemonLog(level, "auto", terminal, verbose=verbose)
    log.bind(lambda: {"run": "digits", "step": 4})
    mine = logging.getLogger("tolariad.test")
    mine.info("Trainer 1 started as pid 7")
    mine.warning("Trainer 1 has ended", extra={"told_by": "TrainerDied"})
    mine.warning("slow disk\x1b[2J")
    log.close()
    lines = re.sub(r"\x1b\[[0-9;]*[mK]", "", read_all(reader).decode()).replace("\r", "").splitlines()
    os.close(terminal)
    os.close(reader)

    if verbose or level == "debug":
        assert len(lines) == 3
        assert all("[tolariad.test]" in one and "run=digits" in one for one in lines)
    else:
        assert lines == ["warning: slow disk\\x1b[2J"]


def test_a_record_that_cannot_be_rendered_does_not_reach_the_caller(root_logger, capfd):
    """A wrong format string is logging's own problem, never the run's."""
    reader, writer_end = os.pipe()
    writer = DaemonLog("info", "text", writer_end)
    logging.getLogger("tolariad.test").info("%d steps", "many")
    logging.getLogger("tolariad.test").info("still here")
    writer.close()
    assert b"still here" in read_all(reader)


def test_a_blocked_stderr_never_blocks_the_caller(root_logger):
    """Nobody reads the pipe: 20 000 long lines are logged at once, dropped ones are counted, closing ends in time."""
    reader, writer_end = os.pipe()
    writer = DaemonLog("info", "text", writer_end)
    started = time.monotonic()
    for _ in range(20_000):
        logging.getLogger("tolariad.test").info("x" * 300)
    logged = time.monotonic()
    writer.close(0.1)
    assert writer.writer.dropped_count > 10_000
    assert time.monotonic() - logged < 30
    assert logged - started < 60
    os.close(reader)


def test_a_gap_is_said_in_the_output():
    """After drops the next piece that is written says how many went missing."""
    reader, writer_end = os.pipe()
    writer = BoundedWriter(writer_end, "test", bytes_max=100_000)
    for _ in range(100):
        writer.write(b"y" * 9_999 + b"\n")
    assert writer.dropped_count > 0
    deadline = time.monotonic() + 30
    text, said = b"", 0
    while said < writer.dropped_count and time.monotonic() < deadline:
        text += read_all(reader)
        said = sum(int(count) for count in re.findall(rb"\[(\d+) pieces of output were dropped here\]", text))
        time.sleep(0.01)
    writer.close()
    assert said == writer.dropped_count


def test_a_closed_terminal_breaks_nothing():
    """Writing into a pipe without a reader is counted, not raised; so is writing after the end."""
    reader, writer_end = os.pipe()
    os.close(reader)
    writer = BoundedWriter(writer_end, "test")
    writer.write(b"lost\n")
    writer.close()
    writer.write(b"lost too\n")
    assert writer.dropped_count == 2


def test_a_disk_that_has_room_again_is_written_again(tmp_path):
    """A write that fails costs that piece; the next one is written, after a word about the gap."""
    path = tmp_path / "log"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    full = os.open("/dev/full", os.O_WRONLY)
    kept = os.dup(descriptor)
    os.dup2(full, descriptor)
    writer = BoundedWriter(descriptor, "test")
    writer.write(b"lost\n")
    wait_for(lambda: writer.dropped_count)
    os.dup2(kept, descriptor)
    writer.write(b"kept\n")
    writer.close()
    assert path.read_text() == "kept\n[1 pieces of output were dropped here]\n"
