"""A journal of a simulated run, and a reader of event files that shares nothing with the writer."""

from __future__ import annotations

import struct
from pathlib import Path

import google_crc32c

from journal import Journal
from tests.core.simulate import World, until
from tolariad.core import messages as m
from tolariad.core.messages.vocabulary import encode_event
from tolariad.core.state.run_state import RunState, apply, capture


def went_back() -> World:
    """Return a run that was told a note, and a stage in vain, went from step 10 back to 4, and trained to its end."""
    world = until(World(0), 6)
    world.command(m.Note(text="the loss | looks odd"))
    world.command(m.AnnounceStage(text="label smoothing on", reason="as planned"))
    until(world, 10)
    world.command(m.Rollback(epoch=1, reason="too noisy"))
    world.run()
    return world


def write_journal(events: list[m.Event], folder: Path) -> Path:
    """Write the events as a journal in small segments. Return its folder."""
    state = RunState()
    with Journal.open(folder, segment_bytes=65_536) as journal:
        journal.begin(
            run_id=bytes(16), context_hash=bytes(32), capture=lambda: capture(state), wall_ns=1, boot_id=bytes(16)
        )
        for event in events:
            state, before = apply(state, event), state
            at = before.progress
            journal.commit([encode_event(event)], epoch=at.epoch, step=at.step, wall_ns=event.wall, mono_ns=event.mono)
    return folder


def masked(data: bytes) -> int:
    value = google_crc32c.value(data)
    return (((value >> 15) | (value << 17)) + 0xA282EAD8) % 2**32


def records(content: bytes) -> list[bytes]:
    """Return the records of an event file, with both checksums compared."""
    found, at = [], 0
    while at < len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        assert struct.unpack_from("<I", content, at + 8) == (masked(content[at : at + 8]),)
        found.append(content[at + 12 : at + 12 + length])
        assert struct.unpack_from("<I", content, at + 12 + length) == (masked(found[-1]),)
        at += 16 + length
    assert at == len(content)
    return found


def fields(message: bytes) -> list[tuple[int, object]]:
    """Return the fields of a protobuf message: number, and bytes, integer or the raw bytes of a float."""
    found, at = [], 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        size = {0: None, 1: 8, 5: 4, 2: -1}[key & 7]
        if size is None:
            found.append((key >> 3, varint()))
            continue
        size = varint() if size == -1 else size
        found.append((key >> 3, message[at : at + size]))
        at += size
    return found


def values(content: bytes) -> list[tuple[int, str, object]]:
    """Return step, tag and value of everything in an event file; a text as text."""
    found = []
    for record in records(content)[1:]:
        event = dict(fields(record))
        for _, value in fields(event[5]):
            parts = dict(fields(value))
            is_number = 2 in parts
            shown = struct.unpack("<f", parts[2])[0] if is_number else dict(fields(parts[8]))[8].decode()
            found.append((event[2], parts[1].decode(), shown))
    return found
