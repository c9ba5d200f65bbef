"""The arena in the daemon's memory is compared with its digests; a difference is reported with its name."""

from __future__ import annotations

import errno
import os
import queue
import threading
import time

import pytest
import xxhash

from tolariad.core import messages as m
from tolariad.storage import CheckpointUnusable
from tolariad.storage.snapshot_slot import Table, TensorRow, encode_table, head, table_of
from tolariad.supervisor.arena import SnapshotArena

SLOT_BYTES = 4 * 1024 * 1024
WEIGHT_AT, WEIGHT = 4096, os.urandom(1024 * 1024 + 17)
STATE_AT, STATE = 2 * 1024 * 1024, b"position, random state, data" * 100
TABLE_AT = 3 * 1024 * 1024


@pytest.fixture
def told():
    return queue.SimpleQueue()


@pytest.fixture
def ring(told):
    """An arena with two slots; the second one has a snapshot."""
    made = SnapshotArena(told.put, free=lambda: 1 << 30)
    made.prepare(m.PrepareRing(slot_bytes=SLOT_BYTES, slots=2, memory=2 * SLOT_BYTES))
    assert told.get(timeout=10.0) == m.RingPrepared(slots=2, slot_bytes=SLOT_BYTES)
    yield made
    made.close()


def laid(ring):
    """Write a snapshot there as a trainer would. Return the digest of its table."""
    table = Table(
        step=7,
        epoch=1,
        batch=7,
        acted=(),
        parent="",
        groups={
            "model": (
                TensorRow("weight", "U8", (len(WEIGHT),), WEIGHT_AT, len(WEIGHT), xxhash.xxh3_64_intdigest(WEIGHT)),
            )
        },
        aliases={},
        transient=(),
        state_group="state",
        state_first=STATE_AT,
        state_size=len(STATE),
        state_xxh3=xxhash.xxh3_64_intdigest(STATE),
    )
    encoded, digest = encode_table(table)
    for at, data in ((0, head(TABLE_AT, len(encoded))), (WEIGHT_AT, WEIGHT), (STATE_AT, STATE), (TABLE_AT, encoded)):
        os.pwrite(ring.descriptor, data, SLOT_BYTES + at)
    return digest


def looked(ring, told, digest):
    """Return the report of one check, after the check has ended."""
    ring.verify(m.VerifySnapshot(id="s000001", slot=1, table=digest))
    for thread in threading.enumerate():
        if thread.name == "tolaria-ring-look":
            thread.join(60.0)
    return None if told.empty() else told.get()


@pytest.mark.parametrize(
    ("at", "named"),
    [
        (0, "table"),
        (8, "table"),
        (TABLE_AT, "table"),
        (TABLE_AT + 40, "table"),
        (WEIGHT_AT, "model: weight"),
        (WEIGHT_AT + len(WEIGHT) - 1, "model: weight"),
        (STATE_AT + len(STATE) - 1, "state: slot 1"),
    ],
)
def test_a_flipped_bit_is_told_by_the_name_of_what_holds_it(ring, told, at, named):
    """A bit of the head, the table, a tensor or the rest is reported; after restoring it nothing is."""
    digest = laid(ring)
    (byte,) = os.pread(ring.descriptor, 1, SLOT_BYTES + at)
    os.pwrite(ring.descriptor, bytes([byte ^ 0x80]), SLOT_BYTES + at)
    found = looked(ring, told, digest)
    os.pwrite(ring.descriptor, bytes([byte]), SLOT_BYTES + at)

    assert isinstance(found, m.SnapshotDiffers)
    assert (found.id, named in found.why) == ("s000001", True), found.why
    assert looked(ring, told, digest) is None


def test_what_lies_between_matters_to_nobody_and_another_snapshots_table_does(ring, told):
    """The journal has the digest: an intact snapshot that is not the expected one is a difference."""
    digest = laid(ring)
    os.pwrite(ring.descriptor, b"noise", SLOT_BYTES + 2048)
    os.pwrite(ring.descriptor, b"noise", 4096)

    assert looked(ring, told, digest) is None
    assert isinstance(looked(ring, told, "00" * 16), m.SnapshotDiffers)


def test_a_ring_that_is_closed_or_has_no_memory_yet_looks_at_nothing(told):
    """Nothing is reported, and no thread stays."""
    ring = SnapshotArena(told.put)
    ring.verify(m.VerifySnapshot(id="s000001", slot=0, table="00" * 16))
    ring.close()
    ring.verify(m.VerifySnapshot(id="s000001", slot=0, table="00" * 16))

    assert told.empty()
    assert not [thread for thread in threading.enumerate() if thread.name == "tolaria-ring-look"]


def test_an_order_that_meets_the_end_neither_fails_it_nor_outlives_it(told, ring, monkeypatch):
    """Orders come from the kernel's thread. The end may come between a thread's creation and its start."""
    made = threading.Event()

    class Lazy(threading.Thread):
        def start(self):
            made.set()
            time.sleep(0.05)
            super().start()

    ordering = threading.Thread(target=ring.verify, args=(m.VerifySnapshot(id="s000001", slot=0, table=1),))
    monkeypatch.setattr("threading.Thread", Lazy)
    ordering.start()
    assert made.wait(10.0)
    ring.close()
    ordering.join()

    assert not [one for one in threading.enumerate() if one.name == "tolaria-ring-look"]


def test_what_is_told_may_be_answered_with_the_next_order(told):
    """The report may give the next order, because the check has ended by then."""
    told_of = queue.SimpleQueue()

    def tell(what):
        told_of.put(what)
        if isinstance(what, m.SnapshotDiffers) and what.id == "s000001":
            ring.verify(m.VerifySnapshot(id="s000002", slot=1, table=1))

    ring = SnapshotArena(tell, free=lambda: 1 << 30)
    ring.prepare(m.PrepareRing(slot_bytes=4096, slots=2, memory=8192))
    told_of.get(timeout=10.0)
    ring.verify(m.VerifySnapshot(id="s000001", slot=0, table=1))
    names = [told_of.get(timeout=10.0).id for _ in range(2)]
    ring.close()

    assert names == ["s000001", "s000002"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_look_that_failed_altogether_is_not_the_last_one(told, ring, monkeypatch):
    """Unreadable memory is not reported as a difference, and the next order is still carried out."""
    digest = laid(ring)

    def unreadable(*_given):
        raise OSError(errno.EIO, "not to be read")

    with monkeypatch.context() as broken:
        broken.setattr("tolariad.supervisor.arena.verify_slot", unreadable)
        assert looked(ring, told, digest) is None
    os.pwrite(ring.descriptor, b"x", SLOT_BYTES + WEIGHT_AT)

    assert isinstance(looked(ring, told, digest), m.SnapshotDiffers)


@pytest.mark.parametrize("rows", [(-1, 10), (0, -1), (0, SLOT_BYTES + 1), (SLOT_BYTES, 1), (2**62, 2**62)])
def test_a_table_that_names_a_place_outside_its_slot_is_no_snapshot(rows):
    """The trainer wrote it, with its digest: nothing else is read for it."""
    first, size = rows
    for table in (
        Table(step=1, epoch=1, batch=1, acted=(), parent="", aliases={}, transient=(), state_group="s", state_xxh3=0,
              groups={"model": (TensorRow("w", "U8", (1,), first, size, 0),)}, state_first=0, state_size=0),
        Table(step=1, epoch=1, batch=1, acted=(), parent="", aliases={}, transient=(), state_group="s", state_xxh3=0,
              groups={}, state_first=first, state_size=size),
    ):  # fmt: skip
        encoded, digest = encode_table(table)
        image = head(4096, len(encoded)).ljust(4096, b"\0") + encoded
        with pytest.raises(CheckpointUnusable, match="outside the slot"):
            table_of(0, SLOT_BYTES, digest, lambda at, count, image=image: image[at : at + count])


@pytest.mark.parametrize("encoded", [b"", b"\xc1", b"\x91" * 5000, b"\x81\xa4step\xa1\xff", b"\x80"])
def test_a_table_that_cannot_be_read_is_no_snapshot(encoded):
    """Its digest is right."""
    image = head(4096, len(encoded)).ljust(4096, b"\0") + encoded
    with pytest.raises(CheckpointUnusable):
        table_of(0, SLOT_BYTES, xxhash.xxh3_128_hexdigest(encoded), lambda at, count: image[at : at + count])
    with pytest.raises(CheckpointUnusable, match="no table"):
        table_of(0, SLOT_BYTES, "", lambda *_: b"")
