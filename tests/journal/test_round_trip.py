"""Any events in any batches come back unchanged, over any rotations and restarts."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from journal import Journal, JournalEntry, Verdict, verify
from tests.journal.make import MemoryFiles, begin, entries, numbered, read_all

FOLDER = Path("/journal")
scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(max_size=600)
)
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=3)
events = st.dictionaries(st.text(), values, max_size=3).map(msgspec.msgpack.encode)
labels = st.tuples(
    st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**63 - 1)
)
batches = st.lists(st.tuples(st.lists(events, min_size=1, max_size=4), labels), max_size=8)
restarts = st.sets(st.integers(0, 7))


@settings(max_examples=8, deadline=None)
@given(batches, restarts)
def test_what_goes_in_comes_out(written, restarts):
    """Writer, restarted writer, reader and verify agree on every byte and every label."""
    files = MemoryFiles()
    journal = begin(Journal.open(FOLDER, segment_bytes=16 * 512, alignment=512, files=files))
    for number, (batch, (epoch, step, wall_ns, mono_ns)) in enumerate(written):
        if number in restarts:
            journal.close()
            journal = begin(Journal.open(FOLDER, segment_bytes=16 * 512, alignment=512, files=files))
        journal.commit(batch, epoch=epoch, step=step, wall_ns=wall_ns, mono_ns=mono_ns)
    journal.close()
    flat = [one for batch, _ in written for one in batch]
    shown = [(wall_ns, epoch, step) for batch, (epoch, step, wall_ns, _) in written for _ in batch]

    with Journal.open(FOLDER, files=files) as again:
        records = [record for record in again.records() if isinstance(record, JournalEntry)]
    assert entries(records) == numbered(flat)
    assert [(entry.wall_ns, entry.epoch, entry.step) for entry in records] == shown
    assert read_all(FOLDER, files) == (numbered(flat), None)
    report = verify(FOLDER, files=files)
    assert (report.verdict, report.events) == (Verdict.CLEAN, len(flat))


@settings(max_examples=20, deadline=None)
@given(st.binary(max_size=3000), st.integers(0, 60_000))
def test_bytes_from_anywhere_never_confuse_a_reader(garbage, offset):
    """Random bytes over a journal: opening and reading return committed events or refuse."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with begin(Journal.open(folder, segment_bytes=65_536)) as journal:
            for n in range(8):
                journal.commit([msgspec.msgpack.encode({"n": n})], epoch=0, step=n, wall_ns=n, mono_ns=n)
        (path,) = folder.glob("*.wal")
        image = path.read_bytes()
        path.write_bytes((image[:offset] + garbage + image[offset + len(garbage) :])[: len(image)])

        got, _ = read_all(folder, MemoryFiles({path: path.read_bytes()}))

    expected = numbered(msgspec.msgpack.encode({"n": n}) for n in range(8))
    assert got == expected[: len(got)]
