"""Shared by all fault classes: a writer whose events contain their own number, and the examination of its journal.

An event's bytes follow from its sequence number alone. So for any event in any broken journal the tests can say whether
it is the committed one. The acknowledgements say how many there must be. Two counts stay zero. `lost`: acknowledged,
and the journal opened for writing without them. `wrong`: returned by a reader, but not committed under that number. A
refusal counts as neither.
"""

from __future__ import annotations

import os
import random
import struct
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from journal import (
    Files,
    FrameKind,
    Journal,
    JournalDamaged,
    JournalEntry,
    JournalError,
    JournalFull,
    Mark,
    Reader,
    RecoveryKind,
    Verdict,
    verify,
)
from journal.columns import Tabulation

BLOCK = 4096
SEGMENT = 10 * BLOCK
RUN, CONTEXT, BOOT = bytes(range(16)), bytes(range(32)), b"boot-id-16-bytes"
OS = Files()
# A table of the numbers of even events, so that some events give no row.
TABULATION = Tabulation((("seq", "Q"),), lambda event: (seq,) if (seq := seq_of(event)) % 2 == 0 else None)
_SAID = struct.Struct("<QQ")  # tried, acknowledged


def counted(seq: int, longest: int = 9001) -> bytes:
    """Return the event with this number. Its size depends on the number, so frames have many lengths."""
    return msgspec.msgpack.encode({"type": "Counted", "seq": seq, "filler": "x" * (seq * 7919 % longest)})


def seq_of(event: bytes) -> int:
    """Return the number that an event contains."""
    return int(msgspec.msgpack.decode(event)["seq"])


def state(seq: int) -> bytes:
    """Return the state after this event, as captures and state hashes contain it."""
    return msgspec.msgpack.encode(["state", seq])


class Acks:
    """The batches that the writer attempted and those acknowledged, as last sequence numbers."""

    def __init__(self, acked: int = 0) -> None:
        self.acked = acked
        self.tried = acked

    def trying(self, last: int) -> None:
        """A batch up to this number will be committed next."""
        self.tried = last

    def acknowledged(self, last: int) -> None:
        """The commit has returned."""
        self.acked = last


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How a writer works: its sizes, its number of turns, and the seed for the content of each turn."""

    seed: str = "0"
    turns: int = 12
    segment_bytes: int = SEGMENT
    first_blocks: int = 8  # the first segment's length, if that is shorter; later ones grow
    alignment: int = BLOCK
    longest: int = 9001
    background: bool = False  # whether threads keep a spare ready and pack closed segments
    packs: bool = True  # whether it packs closed segments in between, and sometimes finishes
    tabulated: bool = False  # whether closed segments carry a table
    patience: int = 0  # how often a batch for which there was no space is committed again


def open_journal(folder: Path, plan: Plan, files: Files = OS, reached: Callable[[str], None] | None = None) -> Journal:
    """Open the journal as the plan says."""
    more = {} if reached is None else {"reached": reached}
    return Journal.open(
        folder,
        segment_bytes=plan.segment_bytes,
        first_bytes=plan.first_blocks * plan.alignment,
        alignment=plan.alignment,
        files=files,
        tabulation=TABULATION if plan.tabulated else None,
        **more,
    )


def begin_journal(journal: Journal) -> RecoveryKind:
    """Begin with the identity that all classes use. The captured state is the last durable number."""
    recovery = journal.begin(
        run_id=RUN, context_hash=CONTEXT, capture=lambda: state(journal.last_seq), wall_ns=1, boot_id=BOOT
    )
    return recovery.kind


def write(journal: Journal, plan: Plan, acks: Acks) -> None:
    """Commit batches of one and of several events, with marks between them; sometimes make a spare ahead."""
    rng = random.Random(plan.seed)
    if plan.background:
        journal.start_preparing()
    for _ in range(plan.turns):
        act = rng.random()
        first = journal.last_seq + 1
        if act < 0.08:
            journal.mark(FrameKind.STATE_HASH, state(first - 1), wall_ns=first, mono_ns=first)
        elif act < 0.14:
            journal.prepare_spare()
        elif act < 0.20 and plan.packs:
            pack(journal)
        elif act < 0.23 and plan.packs and not plan.background:
            finish(journal)
        else:
            last = first + rng.choice((0, 0, 0, 1, 4, 20))
            acks.trying(last)
            batch = [counted(seq, plan.longest) for seq in range(first, last + 1)]
            commit(journal, batch, plan.patience)
            acks.acknowledged(last)


def commit(journal: Journal, batch: list[bytes], patience: int) -> None:
    """Commit. If there is no space, repeat the batch up to `patience` times: nothing may have changed."""
    first = journal.last_seq + 1
    for tries_left in range(patience, -1, -1):
        try:
            assert journal.commit(batch, epoch=first // 10, step=first, wall_ns=first, mono_ns=first) == first
            return
        except JournalFull:
            assert journal.last_seq == first - 1
            if not tries_left:
                raise


def pack(journal: Journal) -> None:
    """Pack closed segments now, in this thread. It uses the journal's own packer, because a folder has only one."""
    journal._writable().packer.pack_all()


def finish(journal: Journal) -> None:
    """Finish the journal, and then go on with it. Without space for the short segment nothing may have changed."""
    last = journal.last_seq
    try:
        journal.finish(wall_ns=last, mono_ns=last)
    except JournalFull:
        assert journal.last_seq == last


def judge_records(records: object, counts: Counter[str], *, after: int = 0, longest: int = 9001) -> int:
    """Count every record that was not committed under its number as `wrong`. Return the last sequence number."""
    last = after
    for record in records:
        if isinstance(record, JournalEntry):
            counts["wrong"] += record.seq != last + 1 or bytes(record.event) != counted(record.seq, longest)
            last = record.seq
        elif isinstance(record, Mark) and record.kind in (FrameKind.CAPTURE, FrameKind.STATE_HASH):
            counts["wrong"] += record.seq != last or record.body != state(record.seq)
    return last


class PipedAcks(Acks):
    """Reports to another process by one small write each. The bytes it has read when this process dies count."""

    def __init__(self, descriptor: int, acked: int = 0) -> None:
        super().__init__(acked)
        self.descriptor = descriptor

    def trying(self, last: int) -> None:
        super().trying(last)
        os.write(self.descriptor, _SAID.pack(last, self.acked))

    def acknowledged(self, last: int) -> None:
        super().acknowledged(last)
        os.write(self.descriptor, _SAID.pack(self.tried, last))

    @staticmethod
    def heard(data: bytes, acked: int) -> Acks:
        """Add the acknowledgements in the pipe's bytes to the earlier ones."""
        acks = Acks(acked)
        if len(data) >= _SAID.size:
            whole = len(data) // _SAID.size * _SAID.size
            acks.tried, acks.acked = _SAID.unpack_from(data, whole - _SAID.size)
        return acks


def work(folder: Path, plan: Plan, acks: Acks) -> int:
    """Run a writer in a process of its own.

    Its exit status is 0, or 3 if the journal failed or was refused. Any other exception is a defect and is not
    caught.
    """
    journal = None
    try:
        journal = open_journal(folder, plan)
        begin_journal(journal)
        write(journal, plan, acks)
    except (JournalError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 3
    finally:
        if journal is not None:
            journal.close()
    return 0


def torn_journal(folder: Path, plan: Plan) -> int:
    """Leave a journal on disk as after a crash in a write, so that a start must cut it. Return its last number."""
    journal = open_journal(folder, plan)
    begin_journal(journal)
    acks = Acks()
    write(journal, plan, acks)
    place = journal.statistics().segment_offset
    newest = max(folder.glob("*.wal"))
    journal.abandon_in_child()  # no watermark, no orderly close
    with newest.open("r+b") as file:
        file.seek(place)
        # The beginning of a frame that never got farther, and not of one that could be whole.
        file.write(b"ESPERENT" + b"torn" * 50)
    return acks.acked


def examine(folder: Path, plan: Plan, acks: Acks, files: Files = OS) -> Counter[str]:
    """Examine the journal as the next start of a daemon does: read, open, fold, begin, commit, close, verify.

    An open journal has all acknowledged events, and all or nothing of the batch in flight. Sets `acks` to what is
    durable now.
    """
    counts: Counter[str] = Counter(lost=0, wrong=0)
    read = readable(folder, plan, counts, files)
    try:
        journal = open_journal(folder, plan, files)
    except JournalError as error:
        counts[refusal_name(error)] += 1
        return counts
    with journal:
        found = judge_records(journal.records(), counts, longest=plan.longest)
        counts["lost"] += max(0, acks.acked - found)
        # Of a batch whose outcome is unknown there is all or nothing.
        counts["wrong"] += found not in (acks.acked, acks.tried) and found >= acks.acked
        counts["wrong"] += read not in (found, None)
        counts[f"{begin_journal(journal)} start"] += 1
        acks.trying(found + 1)
        journal.commit([counted(found + 1, plan.longest)], epoch=0, step=0, wall_ns=0, mono_ns=0)
        acks.acknowledged(found + 1)
    counts["not clean at the end"] += verify(folder, files=files).verdict is not Verdict.CLEAN
    counts["lost"] += readable(folder, plan, counts, files) != found + 1
    return counts


def refusal_name(error: JournalError) -> str:
    """Return the name under which a refusal is counted."""
    return f"refused: {error.damage}" if isinstance(error, JournalDamaged) else f"refused: {type(error).__name__}"


def readable(folder: Path, plan: Plan, counts: Counter[str], files: Files = OS) -> int | None:
    """Return how far a reader without a lock gets, or None if it refuses. Its events are checked either way."""
    try:
        with Reader(folder, files=files) as reader:
            return judge_records(reader.records(), counts, longest=plan.longest)
    except (JournalError, FileNotFoundError):
        return None


def told(name: str, seed: int, counts: Counter[str]) -> str:
    """Return the line that every class prints: its counts, and the seed to repeat it."""
    figures = ", ".join(f"{what}: {number}" for what, number in sorted(counts.items()))
    return f"{name}, TOLARIA_SEED={seed}: {figures}"
