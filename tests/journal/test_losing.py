"""Giving up damaged events: only on request, recorded in the journal, originals kept, never partly."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from journal import (
    Files,
    Journal,
    JournalDamaged,
    JournalError,
    Loss,
    RepairAction,
    Verdict,
    plan_repair,
    repair,
    verify,
)
from journal.packing import Packer
from tests.journal.make import MemoryFiles, begin, commit, event, numbered, read_all
from tests.journal.test_power_cut import FOLDER, SIZES, Disk, PowerCut

SEGMENT = 16 * 4096
COUNT = 40
CUTS_A_PLACE = 8


def gap(loss: Loss) -> bytes:
    return msgspec.msgpack.encode({"type": "Gap", "first": loss.first_seq, "last": loss.last_seq})


def fill(folder: Path, files: Files, **sizes: int) -> list[bytes]:
    written = [event(n, size=n * 97 % 1500) for n in range(1, COUNT + 1)]
    with begin(Journal.open(folder, files=files, **sizes)) as journal:
        for n, one in enumerate(written, start=1):
            commit(journal, [one], step=n)
    return written


def frames(image: bytes, block: int) -> list[int]:
    return [at for at in range(block, len(image), block) if image[at : at + 8] == b"ESPERENT"]


def spoil(path: Path, frame: int = 5) -> None:
    """Flip one bit in the body of a frame, at its place in the unpacked segment."""
    image = bytearray(path.read_bytes())
    image[frames(image, 4096)[frame] + 260] ^= 1
    path.write_bytes(image)


def originals(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def check_repaired(folder: Path, written: list[bytes], plan) -> None:
    """Check the events before the gap, the event that records it, and that the journal can be written again."""
    before = plan.loss.first_seq - 1
    expected = numbered([*written[:before], gap(plan.loss)])
    assert plan.action is RepairAction.LOSE_EVENTS
    assert read_all(folder, Files()) == (expected, None)
    assert verify(folder).verdict is Verdict.CLEAN
    with begin(Journal.open(folder, segment_bytes=SEGMENT)) as journal:
        for n in range(30):
            assert commit(journal, [event(n)]) == before + 2 + n
    assert verify(folder).verdict is Verdict.CLEAN


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
def test_damage_in_an_old_segment_is_cut_with_everything_after_it(quick_path, packed):
    """First planned and refused without changes, then done; every original byte is kept."""
    written = fill(quick_path, Files(), segment_bytes=SEGMENT)
    victim = sorted(quick_path.glob("*.wal"))[1]
    spoil(victim)
    if packed:
        Packer(Files(), quick_path, pause_s=0).pack_all()
    before = originals(quick_path)
    segments = sum(".wal" in name for name in before)

    plan = plan_repair(quick_path)
    assert (plan.action, plan.problem.seq, plan.loss.first_seq) == (
        RepairAction.REFUSED,
        plan.loss.first_seq,
        plan.loss.first_seq,
    )
    assert (plan.loss.last_seq, plan.loss.segments) == (COUNT, segments - 2)
    assert f"events {plan.loss.first_seq} to {COUNT}" in plan.sentence
    assert repair(quick_path).action is RepairAction.REFUSED
    assert originals(quick_path) == before

    done = repair(quick_path, accept_loss=gap)
    kept = originals(done.quarantine)
    assert kept == {name: image for name, image in before.items() if name in kept}
    assert len(kept) == segments - 1
    check_repaired(quick_path, written, done)


def test_damage_in_the_newest_segment(quick_path):
    """An acknowledged frame with intact frames after it: these are counted and given up."""
    written = fill(quick_path, Files(), segment_bytes=SEGMENT)
    newest = max(quick_path.glob("*.wal"))
    spoil(newest, frame=2)
    done = repair(quick_path, accept_loss=gap)
    assert (done.loss.last_seq, done.loss.segments) == (COUNT, 0)
    check_repaired(quick_path, written, done)


def test_a_missing_segment(quick_path):
    """The segment before it loses its seal to make room for the event; later segments are moved away."""
    written = fill(quick_path, Files(), segment_bytes=SEGMENT)
    names = sorted(quick_path.glob("*.wal"))
    missing = int(names[2].name[9:25])
    names[2].unlink()
    done = repair(quick_path, accept_loss=gap)
    assert (done.loss.first_seq, done.loss.last_seq, done.loss.segments) == (missing, COUNT, len(names) - 3)
    check_repaired(quick_path, written, done)


def test_a_segment_whose_head_is_damaged(quick_path):
    """Its header is unreadable, so its frames are counted by the later segments."""
    written = fill(quick_path, Files(), segment_bytes=SEGMENT)
    names = sorted(quick_path.glob("*.wal"))
    image = bytearray(names[1].read_bytes())
    image[50] ^= 1
    names[1].write_bytes(image)
    done = repair(quick_path, accept_loss=gap)
    assert (done.loss.first_seq, done.loss.last_seq) == (int(names[1].name[9:25]), COUNT)
    check_repaired(quick_path, written, done)


def test_where_nothing_would_be_left_there_is_nothing_to_accept(quick_path):
    """If the first segment's head is damaged, no state is left, so the repair stays refused."""
    fill(quick_path, Files(), segment_bytes=SEGMENT)
    first = min(quick_path.glob("*.wal"))
    image = bytearray(first.read_bytes())
    image[50] ^= 1
    first.write_bytes(image)
    before = originals(quick_path)
    plan = repair(quick_path, accept_loss=gap)
    assert (plan.action, plan.loss) == (RepairAction.REFUSED, None)
    assert originals(quick_path) == before | {"lock": b""}


def test_damage_that_touches_no_event_loses_none(quick_path):
    """Padding that is not zero is refused as before, and there is no loss to accept."""
    fill(quick_path, Files(), segment_bytes=SEGMENT)
    newest = max(quick_path.glob("*.wal"))
    image = bytearray(newest.read_bytes())
    image[300] = 1
    newest.write_bytes(image)
    plan = repair(quick_path, accept_loss=gap)
    assert (plan.action, plan.loss, plan.problem.damage) == (RepairAction.REFUSED, None, "padding")


def test_a_clean_or_torn_journal_loses_nothing_to_a_repair_that_would_accept_it(quick_path):
    """Accepting a loss causes none."""
    written = fill(quick_path, Files(), segment_bytes=SEGMENT)
    assert repair(quick_path, accept_loss=gap).action is RepairAction.NOTHING
    newest = max(quick_path.glob("*.wal"))
    image = bytearray(newest.read_bytes())
    end = -(-len(bytes(image).rstrip(b"\0")) // 4096) * 4096
    image[end : end + 9] = b"remains!!"
    newest.write_bytes(image)
    assert repair(quick_path, accept_loss=gap).action is RepairAction.CUT_TAIL
    assert read_all(quick_path, Files()) == (numbered(written), None)


@pytest.mark.parametrize("damaged", ["plain", "packed", "to its end"])
def test_a_power_cut_at_any_operation_leaves_a_refusal_or_a_gap_that_is_told(damaged, seed):
    """No journal opens as if nothing were lost, and no original is gone. Repeating the repair completes it.

    A segment that is damaged to its end looks like a torn one if no segment follows it.
    """
    start = MemoryFiles()
    written = fill(FOLDER, start, **SIZES)
    segments = sorted(path for path in start.images if path.suffix == ".wal")
    spoilt, place = start.images[segments[2]], frames(start.images[segments[2]], 512)[3] + 260
    end = len(spoilt) if damaged == "to its end" else place + 1
    spoilt[place:end] = b"?" * (end - place)
    if damaged == "packed":
        Packer(start, FOLDER, pause_s=0).pack_all()
    segments = sorted(path for path in start.images if ".wal" in path.name)
    originals = {bytes(start.images[path]) for path in segments[2:]}
    rng, found, cuts = random.Random(seed), Counter[str](), 0
    while True:
        cuts += 1
        disk = Disk(start.snapshot(), -(-cuts // CUTS_A_PLACE), rng)
        try:
            repair(FOLDER, files=disk, accept_loss=gap)
        except PowerCut:
            pass
        else:
            break
        after = MemoryFiles(disk.after_the_cut())
        assert originals <= set(map(bytes, after.images.values()))
        try:
            Journal.open(FOLDER, files=after, **SIZES).close()
        except JournalDamaged:
            found["refused"] += 1
        else:
            found["told"] += 1
            assert b"Gap" in read_all(FOLDER, after)[0][-1][1]
        plan = repair(FOLDER, files=after, accept_loss=gap)
        assert plan.action in (RepairAction.LOSE_EVENTS, RepairAction.NOTHING)
        got, error = read_all(FOLDER, after)
        kept = [raw for _, raw in got if b"Gap" not in raw]
        assert error is None
        assert kept == written[: len(kept)]
        assert any(b"Gap" in raw for _, raw in got)
        assert verify(FOLDER, files=after).verdict is Verdict.CLEAN
        assert originals <= set(map(bytes, after.images.values()))
    print(f"loss repair cut at {cuts // CUTS_A_PLACE} operations: {dict(found)}, gaps untold 0")
    assert found["refused"] > 5


def test_what_does_not_fit_after_the_cut_is_refused_before_anything_is_changed(quick_path):
    """If the event is larger than the room, the damaged segment stays in place."""
    fill(quick_path, Files(), segment_bytes=SEGMENT)
    spoil(min(quick_path.glob("*.wal")))
    before = originals(quick_path)
    with pytest.raises(JournalError, match="no room"):
        repair(quick_path, accept_loss=lambda _: msgspec.msgpack.encode("x" * 100_000))
    assert originals(quick_path) == before | {"lock": b""}
