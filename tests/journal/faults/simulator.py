"""Fault class 14: a simulated disk under the real writer. One seed decides everything that happens.

A seed draws a profile and several lives. In each life the journal is opened, examined, begun and written to. A life
ends by a power cut, a kill, a failing call, or when all is done. There is no thread and no clock, so a seed that fails
will fail again.

    profile   faults of the disk
    calm      only power cuts and kills: the write in flight is torn sector by sector, unsynced names may be lost
    failing   also EIO, ENOSPC and short writes, once, twice or permanently; failures reported of writes that arrive
    lying     also writes that are lost or misplaced but reported as done; bits that rot

With the first two profiles every acknowledged event is there and every journal opens. With the third no writer can
promise that. Then no wrong event is returned, and a loss is found if any honest write came after it.
"""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from pathlib import Path

import msgspec

from journal import Journal, JournalError, JournalFailed, JournalFull, JournalMissing, Reader, Verdict, verify
from journal.format import ENTRY_MAGIC
from journal.frame import parse_entry
from tests.journal.faults.harness import (
    Acks,
    Plan,
    begin_journal,
    examine,
    judge_records,
    open_journal,
    refusal_name,
    write,
)
from tests.journal.make import MemoryFiles

FOLDER = Path("/journal")
SECTOR = 512
PROFILES = ("calm", "failing", "lying")
LIVES = 4


class PowerCut(BaseException):
    """The machine is off, or the process is dead. This is no OSError, so the writer cannot handle it."""


class Write:
    """One write of a frame or of a segment's head, and whether the disk still has it unchanged."""

    def __init__(self, path: Path, start: int, end: int, first_seq: int, last_seq: int) -> None:
        self.path, self.start, self.end = path, start, end
        self.first_seq, self.last_seq = first_seq, last_seq
        self.honest = True


class SimulatedDisk(MemoryFiles):
    """A disk that may misbehave. Writes are durable when they return, names after their folder was synced."""

    def __init__(self, rng: random.Random, profile: str) -> None:
        super().__init__()
        self.rng, self.profile = rng, profile
        self.durable_names: dict[Path, bytearray] = {}
        self.changes: list[tuple[str, Path, Path | None, bytearray]] = []
        self.writes: list[Write] = []
        self.counts: Counter[str] = Counter()
        self.looks: Counter[str] = Counter()
        self.follower: Reader | None = None
        self.seen = 0
        self.begin_life(faults=False)

    def begin_life(self, *, faults: bool = True) -> None:
        """Draw the end of this life, and the failures before it."""
        rng = self.rng
        self.locked.clear()
        self.open.clear()
        self.calls = 0
        self.dead = False
        self.cut_at = rng.randint(1, 60) if faults and rng.random() < 0.8 else 0
        errors = faults and self.profile != "calm" and rng.random() < 0.7
        self.fails_from = rng.randint(1, 40) if errors else 0
        self.fails_for = rng.choice((1, 1, 2, 3, 1 << 30))
        self.error = rng.choice((errno.EIO, errno.EIO, errno.ENOSPC, errno.EROFS, errno.EDQUOT))
        self.manner = rng.choice(("raises", "raises", "short", "arrives"))
        self.lie_rate = rng.choice((0.02, 0.1)) if faults and self.profile == "lying" else 0.0
        self.follower, self.seen = None, 0

    # The calls of the journal. Each counts, and may be the last.

    def _strikes(self) -> bool:
        """Count one call and return whether it fails. Raises PowerCut at the last one."""
        if self.dead:
            raise PowerCut
        self.calls += 1
        if self.calls == self.cut_at:
            self.dead = True
        return self.fails_from > 0 and 0 <= self.calls - self.fails_from < self.fails_for

    def _call(self) -> None:
        if self._strikes():
            self.counts["errors"] += 1
            raise OSError(self.error, os.strerror(self.error))
        if self.dead:
            raise PowerCut

    def pwrite(self, descriptor, data, offset):
        data = bytes(data)
        fails = self._strikes()
        place = self.open[descriptor]
        if self.dead:
            self._tear(descriptor, data, offset)
            raise PowerCut
        if not fails:
            return self._write_or_lie(descriptor, data, offset, place)
        self.counts["errors"] += 1
        if self.manner == "short":
            return super().pwrite(descriptor, data[: self.rng.randrange(len(data))], offset)
        if self.manner == "arrives":
            super().pwrite(descriptor, data, offset)
        raise OSError(self.error, os.strerror(self.error))

    def _tear(self, descriptor: int, data: bytes, offset: int) -> None:
        kept = self.rng.choice(("nothing", "everything", "some", "beginning"))
        sectors = range(0, len(data), SECTOR)
        end = self.rng.randrange(len(data) + 1)
        for at in sectors:
            if (
                kept == "everything"
                or (kept == "some" and self.rng.random() < 0.5)
                or (kept == "beginning" and at < end)
            ):
                super().pwrite(descriptor, data[at : at + SECTOR], offset + at)

    def _write_or_lie(self, descriptor: int, data: bytes, offset: int, path: Path) -> int:
        lies = self.rng.random() < self.lie_rate
        record = self._noted(path, data, offset)
        if not lies or record is None:
            super().pwrite(descriptor, data, offset)
        else:
            self.counts["lies"] += 1
            record.honest = False
            if self.rng.random() < 0.5:
                self._misdirect(descriptor, data, path)
        if lies and self.rng.random() < 0.3:
            self._rot()
        return len(data)

    def _noted(self, path: Path, data: bytes, offset: int) -> Write | None:
        if path.suffix == ".torn":
            return None
        if data[:8] == ENTRY_MAGIC:
            header = parse_entry(data)
            record = Write(path, offset, offset + len(data), header.first_seq, header.last_seq)
        elif offset == 0 and any(data):
            record = Write(path, 0, len(data), 0, -1)
        else:
            return None  # zeros: of a spare, or over a torn tail
        self._spoil(path, offset, offset + len(data))
        self.writes.append(record)
        return record

    def _spoil(self, path: Path, start: int, end: int) -> None:
        for earlier in self.writes:
            if earlier.path == path and earlier.start < end and start < earlier.end:
                earlier.honest = False

    def _misdirect(self, descriptor: int, data: bytes, path: Path) -> None:
        blocks = len(self.images[path]) // SECTOR
        elsewhere = self.rng.randrange(max(1, blocks)) * SECTOR
        self._spoil(path, elsewhere, elsewhere + len(data))
        super().pwrite(descriptor, data[: max(0, blocks * SECTOR - elsewhere)], elsewhere)

    def _rot(self) -> None:
        written = [one for one in self.writes if one.honest and one.start < len(self.images.get(one.path, b""))]
        if written:
            one = self.rng.choice(written)
            at = self.rng.randrange(one.start, min(one.end, len(self.images[one.path])))
            self.images[one.path][at] ^= 1 << self.rng.randrange(8)
            one.honest = False

    def create(self, path):
        self._call()
        descriptor = super().create(path)
        self.changes.append(("create", path, None, self.images[path]))
        return descriptor

    def rename(self, source, target):
        self._call()
        image = self.images[source]
        super().rename(source, target)
        for one in self.writes:
            one.path = target if one.path == source else one.path
        self.changes.append(("rename", source, target, image))

    def unlink(self, path):
        self._call()
        image = self.images.get(path)
        super().unlink(path)
        self.changes.append(("unlink", path, None, image))

    def open_write(self, path):
        self._call()
        return super().open_write(path)

    def fsync(self, descriptor):
        self._call()

    def fsync_folder(self, folder):
        self._call()
        self._keep(self.changes)
        self.changes.clear()

    def _keep(self, changes: list[tuple[str, Path, Path | None, bytearray]]) -> None:
        for what, path, target, image in changes:
            if what != "create":
                self.durable_names.pop(path, None)
            if what != "unlink":
                self.durable_names[target or path] = image

    def end_life(self) -> None:
        """Prepare the next life's files: after a kill all of them, after a power cut those the disk had to keep."""
        power = self.dead and self.rng.random() < 0.7
        self.counts["power cuts" if power else "kills" if self.dead else "ends"] += 1
        self.dead = False
        if power:
            # A file system may keep the changes to its names in order, or any of them.
            ordered = self.rng.random() < 0.5
            kept = self.changes[: self.rng.randint(0, len(self.changes))]
            self._keep(kept if ordered else [one for one in self.changes if self.rng.random() < 0.5])
            self.changes.clear()
            self.images = dict(self.durable_names)

    def excuses(self, found: int, acked: int) -> bool:
        """Return whether no honest write came after the first missing event: then no reader can notice the loss."""
        missing = [place for place, one in enumerate(self.writes) if found < one.last_seq <= acked]
        if not missing:
            return False
        # A head in a file that never got its name proves nothing to a reader.
        behind = [one for one in self.writes[missing[0] :] if one.path.suffix == ".wal" and one.path in self.images]
        return not any(one.honest for one in behind)


class SimulatedLives:
    """One seed: several lives of one journal on one disk."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.profile = self.rng.choice(PROFILES)
        self.disk = SimulatedDisk(self.rng, self.profile)
        self.acks = Acks()
        self.counts: Counter[str] = Counter(lost=0, wrong=0)
        self.plan = Plan(
            segment_bytes=self.rng.choice((12, 20)) * SECTOR,
            alignment=SECTOR,
            longest=self.rng.choice((100, 700, 2500)),
            tabulated=self.rng.random() < 0.3,
        )

    def run(self) -> Counter[str]:
        """Run all lives, and one without faults after them."""
        for number in range(LIVES):
            self.disk.begin_life()
            if not self._live(number):
                break
            self.disk.end_life()
        else:
            self._in_peace()
        self.counts.update(self.disk.counts)
        self.counts[f"{self.profile} seeds"] += 1
        return self.counts

    def _live(self, number: int) -> bool:
        """Run one life. Return False if the journal was refused."""
        journal = None
        plan = msgspec.structs.replace(self.plan, seed=str(self.rng.random()), turns=16)
        try:
            journal = open_journal(FOLDER, plan, self.disk, lambda _point: self._look())
            self._judge(journal)
            self.counts[f"{begin_journal(journal)} start"] += 1
            write(journal, plan, self.acks)
        except PowerCut:
            self._let_go(journal)
            return True
        except (JournalFailed, JournalFull):
            self.counts["frozen"] += 1
        except JournalError as error:
            return self._refused(error)
        except OSError:
            self.counts["could not open"] += 1
        try:
            if journal is not None:
                journal.close()
        except (PowerCut, OSError):
            self._let_go(journal)
        return True

    @staticmethod
    def _let_go(journal: Journal | None) -> None:
        if journal is not None:
            journal._closed = "the process is dead"

    def _refused(self, error: JournalError) -> bool:
        self.counts[refusal_name(error)] += 1
        # An honest disk, however often it failed, never leaves what must be refused.
        self.counts["wrong"] += self.profile != "lying"
        return False

    def _judge(self, journal: Journal) -> None:
        found = judge_records(journal.records(), self.counts, longest=self.plan.longest)
        acks = self.acks
        if found < acks.acked:
            excused = self.profile == "lying" and self.disk.excuses(found, acks.acked)
            self.counts["lost at the very end, unprovable" if excused else "lost"] += 1
        elif found not in (acks.acked, acks.tried):
            self.counts["wrong"] += 1
        acks.trying(found)
        acks.acknowledged(found)

    def _look(self) -> None:
        """Let a reader follow at drawn moments: all its events were committed, and are in order."""
        if self.disk.rng.random() > 0.1:
            return
        disk = self.disk
        try:
            if disk.follower is None:
                disk.follower = Reader(FOLDER, files=disk)
            disk.seen = judge_records(iter(disk.follower), self.counts, after=disk.seen, longest=self.plan.longest)
            self.counts["looks"] += 1
        except JournalMissing:
            self.counts["wrong"] += self.acks.acked > 0  # before the first segment has its name there is no journal
        except JournalError:
            self.counts["wrong"] += self.profile != "lying"
            disk.follower = None
            disk.seen = 0

    def _in_peace(self) -> None:
        self.disk.begin_life(faults=False)
        if self.profile != "lying":
            self.counts.update(examine(FOLDER, self.plan, self.acks, self.disk))
            return
        try:
            with open_journal(FOLDER, self.plan, self.disk) as journal:
                self._judge(journal)
                begin_journal(journal)
            self.counts["wrong"] += verify(FOLDER, files=self.disk).verdict is Verdict.TORN_TAIL
        except JournalError as error:
            self._refused(error)


def simulate(seed: int) -> Counter[str]:
    """Run one seed and return its result."""
    return SimulatedLives(seed).run()
