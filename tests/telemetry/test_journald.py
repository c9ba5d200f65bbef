"""systemd's journal gets records with fields, of any size, and nobody waits for it."""

from __future__ import annotations

import array
import logging
import os
import socket
import struct
import time

import pytest

from tolariad.core import messages as m
from tolariad.daemon.logging_events import log_events
from tolariad.telemetry import logs
from tolariad.telemetry.journald import JournalSender, is_journal, message_id
from tolariad.telemetry.logs import DaemonLog


@pytest.fixture
def daemon(tmp_path):
    """A socket in place of journald's, with the bytes of each record."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "socket"))
        server.settimeout(30)
        yield server


def received(server) -> dict[str, str]:
    """Return the fields of the next record, read as the protocol says."""
    room = socket.CMSG_SPACE(4)
    content, ancillary, _, _ = server.recvmsg(1 << 20, room)
    if ancillary:
        (memory,) = array.array("i", ancillary[0][2])
        content = os.pread(memory, 1 << 24, 0)
        os.close(memory)
    fields, at = {}, 0
    while at < len(content):
        end = content.index(b"\n", at)
        name, equals, value = content[at:end].partition(b"=")
        at = end + 1
        if not equals:
            (length,) = struct.unpack_from("<Q", content, at)
            value = content[at + 8 : at + 8 + length]
            at += 8 + length + 1
        fields[name.decode()] = value.decode()
    return fields


@pytest.mark.parametrize("text", ["", "a", "a\nb\n", "=\n=", "ü\n" * 1000, "x" * 3_000_000])
def test_any_text_arrives_as_it_was(daemon, text):
    """Lines, equal signs, and what is larger than a datagram."""
    sender = JournalSender(daemon.getsockname())
    sender.send({"MESSAGE": text, "PRIORITY": "6"})

    assert received(daemon) == {"MESSAGE": text, "PRIORITY": "6"}
    assert sender.dropped_count == 0
    sender.close()


def test_a_journal_that_takes_nothing_delays_nobody_and_hears_how_many_were_lost(daemon):
    """Ten thousand records to a socket that nobody reads."""
    sender = JournalSender(daemon.getsockname())
    begun = time.monotonic()
    for _ in range(10_000):
        sender.send({"MESSAGE": "x"})
    assert time.monotonic() - begun < 60
    lost = sender.dropped_count
    assert lost > 0
    for _ in range(10_000 - lost):
        received(daemon)
    sender.send({"MESSAGE": "y"})

    assert received(daemon) == {"MESSAGE": "y", "TOLARIA_DROPPED": str(lost)}
    sender.close()


def test_a_journal_that_is_gone_is_no_error(daemon, tmp_path):
    """Its records are counted."""
    sender = JournalSender(daemon.getsockname())
    daemon.close()
    sender.send({"MESSAGE": "x"})
    assert sender.dropped_count == 1
    sender.close()
    with pytest.raises(OSError, match="No such file"):
        JournalSender(str(tmp_path / "none"))


def test_only_the_descriptor_that_leads_to_the_journal_counts():
    """A terminal that a service started inherits the variable."""
    reader, writer = os.pipe()
    found = os.fstat(writer)
    stream = f"{found.st_dev}:{found.st_ino}"

    assert is_journal(writer, {"JOURNAL_STREAM": stream})
    assert not is_journal(reader, {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino + 1}"})
    assert not any(is_journal(writer, {"JOURNAL_STREAM": text}) for text in ("", "8", ":", "x:y"))
    assert not is_journal(writer, {})
    os.close(writer)
    os.close(reader)


def test_a_record_has_the_run_the_step_and_the_event(daemon, monkeypatch):
    """Each type of event has an id of its own that never changes; other records have none."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    reader, writer = os.pipe()
    found = os.fstat(writer)
    monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
    monkeypatch.setattr(logs, "JournalSender", lambda: JournalSender(daemon.getsockname()))
    log = DaemonLog("info", "auto", writer)
    log.bind(lambda: {"run": "digits", "epoch": 2, "step": 12})
    try:
        assert log.tells_events
        log_events([(7, m.RunFailed(kind=m.FailureKind.TRAINER, why="it died")), (8, m.EpochStarted(epoch=1))])
        logging.getLogger("tolariad.test").debug("not this")
        try:
            raise ValueError("poison")
        except ValueError:
            logging.getLogger("tolariad.test").exception("caught\x1b")
    finally:
        log.close()
        root.handlers[:] = handlers
        root.setLevel(level)
    event, other = received(daemon), received(daemon)

    assert {name: event[name] for name in event if name != "MESSAGE"} == {
        "PRIORITY": "3",
        "SYSLOG_IDENTIFIER": "tolariad@digits",
        "TOLARIA_LOGGER": "tolariad.daemon.logging_events",
        "TOLARIA_RUN": "digits",
        "TOLARIA_EPOCH": "2",
        "TOLARIA_STEP": "12",
        "TOLARIA_SEQ": "7",
        "TOLARIA_EVENT": "RunFailed",
        "MESSAGE_ID": message_id("RunFailed"),
    }
    assert "it died" in event["MESSAGE"]
    assert "MESSAGE_ID" not in other
    assert other["MESSAGE"].startswith("caught\\x1b\nTraceback")
    os.close(reader)
    os.close(writer)


def test_the_id_of_a_type_never_changes():
    """Somebody's rules name it."""
    assert message_id("RolledBack") == "69177d7911dd5df383cda5d600a01959"
    assert len(message_id("RunFailed")) == 32
