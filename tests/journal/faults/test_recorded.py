"""Fault class 7: a crash after and inside every recorded call of start, append, rotation, repair and recovery."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from journal import repair
from tests.journal.faults.harness import (
    Acks,
    Plan,
    begin_journal,
    counted,
    examine,
    open_journal,
    told,
    torn_journal,
    write,
)
from tests.journal.faults.recorded import CrashDisk, Op, RecordedAcks, Recorder, copy_of, crash_states
from tests.journal.make import MemoryFiles

PLAN = Plan(seed="recorded", turns=14)


class Scene:
    """The begin of a recording: the disk, the reports so far, and what happens then."""

    def __init__(self, folder: Path, act: Callable[[Path, Acks, Plan], None]) -> None:
        self.folder, self.act = folder, act
        self.images: dict[Path, bytes] = {}
        self.acks = Acks()
        self.cached: list[Op] = []  # calls of an earlier process that a kill has left in memory only

    def record(self, plan: Plan) -> tuple[list[Op], CrashDisk]:
        """Run it on real files. Return the calls, and the disk before them."""
        with Recorder(self.folder.parent) as recorder:
            self.act(self.folder, RecordedAcks(recorder, self.acks.tried), plan)
        shutil.rmtree(self.folder)
        disk = CrashDisk(self.images)
        for op in self.cached:
            disk.apply(op)
        return recorder.ops, disk

    def keep(self) -> None:
        """Take the present files as the content of the disk."""
        self.images = {path: path.read_bytes() for path in self.folder.glob("*")}


def live(folder: Path, acks: Acks, plan: Plan) -> None:
    """Run a writer once in order: start, append, rotate, close."""
    with open_journal(folder, plan) as journal:
        begin_journal(journal)
        # From here on everything that was found is relied on, acknowledged by the dead writer or not.
        acks.trying(journal.last_seq)
        acks.acknowledged(journal.last_seq)
        write(journal, plan, acks)


def repaired(folder: Path, acks: Acks, plan: Plan) -> None:
    """Repair cuts the tail, and a writer continues after it."""
    repair(folder)
    live(folder, acks, plan)


def a_new_journal(folder: Path) -> Scene:
    return Scene(folder, live)


def a_torn_journal(folder: Path) -> Scene:
    scene = Scene(folder, live)
    scene.acks = Acks(torn_journal(folder, BEFORE))
    scene.keep()
    return scene


def a_repair(folder: Path) -> Scene:
    scene = a_torn_journal(folder)
    scene.act = repaired
    return scene


def a_frame_in_memory_only(folder: Path) -> Scene:
    """A writer was killed inside its last write: the whole frame is in the page cache but not on disk."""
    scene = Scene(folder, live)
    journal = open_journal(folder, BEFORE)
    begin_journal(journal)
    write(journal, BEFORE, scene.acks)
    place = journal.statistics().segment_offset
    scene.keep()
    scene.acks.trying(journal.last_seq + 1)
    journal.commit([counted(scene.acks.tried)], epoch=0, step=0, wall_ns=0, mono_ns=0)
    journal.abandon_in_child()
    newest = max(folder.glob("*.wal"))
    scene.cached = [Op("write", str(newest), offset=place, data=newest.read_bytes()[place : place + 12_288])]
    return scene


def a_name_in_memory_only(folder: Path) -> Scene:
    """A writer was killed between the rename of a new segment and the sync of its folder."""

    class Killed(Exception):
        pass

    def reached(point: str) -> None:
        if point == "rotation" and len(list(folder.glob("*.wal"))) > 2:
            raise Killed

    scene = Scene(folder, live)
    journal = open_journal(folder, BEFORE, reached=reached)
    begin_journal(journal)
    with pytest.raises(Killed):
        write(journal, msgspec.structs.replace(BEFORE, turns=100), scene.acks)
    journal.abandon_in_child()
    scene.keep()
    newest = max(folder.glob("*.wal"))
    spare = newest.with_name("spare-9.tmp")
    scene.images[spare] = scene.images.pop(newest)
    scene.cached = [Op("rename", str(spare), str(newest))]
    return scene


BEFORE = Plan(seed="before", turns=6, packs=False)
SCENES: dict[str, Callable[[Path], Scene]] = {
    "new": a_new_journal,
    "torn": a_torn_journal,
    "repair": a_repair,
    "frame in memory": a_frame_in_memory_only,
    "name in memory": a_name_in_memory_only,
}


def examine_crashes(name: str, folder: Path, plan: Plan, most: int, rng: random.Random) -> Counter[str]:
    """Examine the crash states of one scene, or as many drawn ones."""
    scene = SCENES[name](folder)
    ops, disk = scene.record(plan)
    states = list(crash_states(ops, disk, copy_of(scene.acks)))
    counts: Counter[str] = Counter({"calls": sum(op.kind not in ("trying", "acknowledged") for op in ops)})
    counts["O_DSYNC writes"] = sum(op.kind == "write" and op.synced for op in ops)
    counts["other writes"] = sum(op.kind == "write" and not op.synced for op in ops)
    for what, image, acks in rng.sample(states, min(most, len(states))):
        found = examine(folder, plan, acks, MemoryFiles(image))
        counts["states"] += 1
        refused = sum(number for outcome, number in found.items() if outcome.startswith("refused"))
        counts["refused"] += refused
        if found["lost"] or found["wrong"] or found["not clean at the end"] or refused:
            print(f"class 7, {name}, {what}: {dict(found)}")
        counts.update(found)
    return counts


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", list(SCENES))
def test_a_crash_at_any_call_loses_nothing_acknowledged(name, quick_path, seed):
    """150 drawn crash states of each scenario: every one opens, lost 0, wrong 0."""
    counts = examine_crashes(name, quick_path / "journal", PLAN, 150, random.Random(seed))

    print(told(f"class 7, {name}", seed, counts))
    assert (counts["lost"], counts["wrong"], counts["refused"], counts["not clean at the end"]) == (0, 0, 0, 0)
    assert counts["states"] == 150
    assert counts["O_DSYNC writes"] > 10


def test_what_a_start_cuts_is_somewhere_whole_at_every_moment(quick_path):
    """Before the first byte of a torn tail is zeroed, its copy and the copy's name are durable."""
    scene = a_torn_journal(quick_path / "journal")
    newest = max(path for path in scene.images if path.suffix == ".wal")
    stop = scene.images[newest].index(b"ESPERENTtorn")
    torn = scene.images[newest][stop:].rstrip(b"\0")
    ops, disk = scene.record(msgspec.structs.replace(PLAN, packs=False))

    states = [image for _, image, _ in crash_states(ops, disk, copy_of(scene.acks))]
    kept = [any(torn in data for data in image.values()) for image in states]
    in_place = [image[newest][stop:].startswith(torn) for image in states]

    assert len(states) > 200
    assert all(kept)
    assert True in in_place
    assert False in in_place


def test_nothing_stale_is_left_after_a_start(quick_path):
    """All bytes that a start has cut are zero in the segment before the next write there."""
    folder = quick_path / "journal"
    torn_journal(folder, BEFORE)
    newest = max(folder.glob("*.wal"))
    place = newest.read_bytes().index(b"ESPERENTtorn")
    with newest.open("r+b") as file:
        file.seek(place)
        file.write(b"ESPERENT" + b"torn" * 5000)

    journal = open_journal(folder, BEFORE)
    begin_journal(journal)
    left = newest.read_bytes()[place:]
    journal.close()

    assert not any(left)


@pytest.mark.torture
def test_every_crash_state_of_many_recordings_loses_nothing_acknowledged(quick_path, seed):
    """All crash states of several recordings of each scenario."""
    counts: Counter[str] = Counter()
    for name in SCENES:
        for number in range(4):
            plan = Plan(seed=f"{seed}-{number}", turns=20, tabulated=number % 2 == 1)
            folder = quick_path / f"{name}-{number}"
            counts.update(examine_crashes(name, folder, plan, 1 << 30, random.Random(seed)))

    print(told("class 7, all", seed, counts))
    assert (counts["lost"], counts["wrong"], counts["refused"], counts["not clean at the end"]) == (0, 0, 0, 0)
    assert counts["states"] > 3000
