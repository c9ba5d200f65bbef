"""Power cuts at every operation, on a simulated disk that keeps only what a real one must keep.

These survive a cut: writes that returned (they are O_DSYNC), and names if their folder was synced. Of the one write in
flight any of the sectors may survive. Of later changes of names, any subset survives: one file's changes in their
order, those of several files in no order. All other data is lost.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from journal import Journal, RecoveryKind, Verdict, verify
from tests.journal.make import MemoryFiles, commit, entries, event, numbered

FOLDER = Path("/journal")
SECTOR = 512
# How likely a change of a name that was not synced is gone.
LOST = 0.4
SIZES = {"segment_bytes": 12 * SECTOR, "alignment": SECTOR}


class PowerCut(BaseException):
    """The machine is off. This is no OSError, so the writer cannot handle it."""


class Disk(MemoryFiles):
    """Counts operations that change a file and cuts the power at one of them."""

    def __init__(self, images: dict[Path, bytes], cut_at: int, rng: random.Random) -> None:
        super().__init__(images)
        self.synced = dict(self.images)  # names as the disk has them; the contents are shared
        self.changes: list[tuple[str, Path, Path | None, bytearray]] = []
        self.count, self.cut_at, self.rng = 0, cut_at, rng

    def _cuts(self) -> bool:
        self.count += 1
        if self.count > self.cut_at > 0:
            raise PowerCut
        return self.count == self.cut_at

    def pwrite(self, descriptor, data, offset):
        if self._cuts():
            kept = self.rng.choice(["nothing", "everything", "some"])
            for at in range(0, len(data), SECTOR):
                if kept == "everything" or (kept == "some" and self.rng.random() < 0.5):
                    super().pwrite(descriptor, data[at : at + SECTOR], offset + at)
            raise PowerCut
        return super().pwrite(descriptor, data, offset)

    def create(self, path):
        if self._cuts():
            raise PowerCut
        descriptor = super().create(path)
        self.changes.append(("create", path, None, self.images[path]))
        return descriptor

    def rename(self, source, target):
        if self._cuts():
            raise PowerCut
        image = self.images[source]
        super().rename(source, target)
        self.changes.append(("rename", source, target, image))

    def unlink(self, path):
        if self._cuts():
            raise PowerCut
        image = self.images.get(path)
        super().unlink(path)
        self.changes.append(("unlink", path, None, image))

    def fsync_folder(self, folder):
        if self._cuts():
            raise PowerCut
        # Of this folder alone: the names of another one wait for its own.
        mine = [change for change in self.changes if folder in (change[1].parent, change[2] and change[2].parent)]
        self.changes = [change for change in self.changes if change not in mine]
        for change in mine:
            self._keep(*change)

    def _keep(self, what: str, path: Path, target: Path | None, image: bytearray) -> None:
        if what != "create":
            self.synced.pop(path, None)
        if what != "unlink":
            self.synced[target or path] = image

    def after_the_cut(self) -> dict[Path, bytes]:
        """Return the files as the next start finds them: no file system promises an order between two names."""
        lost: set[Path | None] = set()
        for change in self.changes:
            names = {path for path in change[1:3] if path is not None}
            if names & lost or self.rng.random() < LOST:
                lost |= names
            else:
                self._keep(*change)
        self.changes.clear()
        return {path: bytes(image) for path, image in self.synced.items()}


def work(disk: Disk, acked: list[bytes], tried: list[bytes], number: int) -> RecoveryKind | None:
    """Open, begin, commit a dozen batches and close. `acked` has the batches acknowledged before a cut."""
    kind = None
    try:
        with Journal.open(FOLDER, files=disk, **SIZES) as journal:
            assert entries(journal.records()) in (numbered(acked), numbered(tried))
            acked[:] = tried[: journal.last_seq]
            tried[:] = acked
            recovery = journal.begin(
                run_id=bytes(16), context_hash=bytes(32), capture=bytes, wall_ns=1, boot_id=bytes(16)
            )
            kind = recovery.kind
            for n in range(12):
                tried.append(event(100 * number + n, size=n * 97 % 1500))
                commit(journal, [tried[-1]])
                acked.append(tried[-1])
    except PowerCut:
        pass
    return kind


@pytest.mark.parametrize("deal", range(6))
def test_a_power_cut_at_any_operation_loses_nothing_acknowledged(deal, seed):
    """Cut at operation 1, 2, 3 and so on, then again during recovery: every start finds all acknowledged events."""
    rng = random.Random(f"{seed}-{deal}")
    counts: Counter[str] = Counter()
    cut_at = 0
    while True:
        cut_at += 1
        acked: list[bytes] = []
        tried: list[bytes] = []
        disk = Disk({}, cut_at, rng)
        work(disk, acked, tried, 1)
        if disk.count < cut_at:
            break
        again = Disk(disk.after_the_cut(), rng.randint(1, 6), rng)  # strikes opening, setting aside, the first batches
        counts[str(work(again, acked, tried, 2))] += 1
        last = Disk(again.after_the_cut(), 0, rng)
        counts[str(work(last, acked, tried, 3))] += 1
        assert verify(FOLDER, files=last).verdict is Verdict.CLEAN
        assert acked == tried

    assert cut_at > 30
    print(f"power cuts, deal {deal}: {cut_at - 1} places, {counts}, acknowledged events lost 0, wrong events 0")
    assert counts["torn"] + counts["unclean"] > 20
