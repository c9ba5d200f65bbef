"""Other programs and users: changes in the folder, clocks, a second writer, a reader that must keep up."""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from pathlib import Path

import pytest

from journal import (
    FrameKind,
    JournalError,
    JournalLocked,
    JournalMissing,
    Reader,
    Verdict,
    repair,
    verify,
)
from tests.journal.faults.harness import (
    Acks,
    Plan,
    begin_journal,
    counted,
    examine,
    judge_records,
    open_journal,
    pack,
    readable,
    told,
    write,
)
from tests.journal.faults.lab import FOLDER, ask
from tests.journal.make import MemoryFiles

PLAN = Plan(seed="outside", turns=30, segment_bytes=20 * 512, alignment=512, longest=700, tabulated=True)
FOREIGN = (
    "notes.txt",
    "00000001.wal",
    "x.wal",
    "00000002-0000000000000009.wal.bak",
    ".hidden",
    "spare-1.tmp",
    "pack-x.tmp",
)
PATIENCE_S = 30.0


def packed_journal(*, packs: bool = True) -> tuple[dict[Path, bytes], int]:
    """A journal with tables whose closed segments are packed."""
    files = MemoryFiles()
    with open_journal(FOLDER, PLAN, files) as journal:
        begin_journal(journal)
        write(journal, PLAN, Acks())
        if packs:
            pack(journal)
        last = journal.last_seq
    return {path: image for path, image in files.snapshot().items() if ".wal" in path.name}, last


def damage(images: dict[Path, bytes], rng: random.Random) -> str:
    """Make one change that a stranger could make to the files' names or bytes."""
    path = rng.choice(sorted(images))
    image = images[path]
    how = rng.choice(("bytes", "bytes", "run of zeros", "cut", "longer", "renamed", "missing", "twice"))
    at = rng.randrange(len(image))
    if how == "bytes":
        noise = rng.randbytes(rng.choice((1, 2, 64, 5000)))
        images[path] = (image[:at] + noise + image[at + len(noise) :])[: len(image)]
    elif how == "run of zeros":
        images[path] = (image[:at] + bytes(512) + image[at + 512 :])[: len(image)]
    elif how == "cut":
        images[path] = image[:at]
    elif how == "longer":
        images[path] = image + rng.randbytes(rng.choice((1, 512)))
    elif how == "renamed":
        images[path.with_name(rng.choice(("lost.wal", "00000099-0000000000000001.wal", path.name + "x")))] = images.pop(
            path
        )
    elif how == "missing":
        del images[path]
    else:
        other = rng.choice(sorted(images))
        images[other] = image
    return f"{how} at {at} of {path.name}"


def only_an_anchor_tells(before: bytes, after: bytes) -> bool:
    """Return whether a change leaves nothing intact after it in the newest segment, like a torn write.

    A segment that is cut or missing shows by its length or name. If it is overwritten to its end, only a noted
    sequence number shows the loss.
    """
    last_frame = (len(before.rstrip(b"\0")) - 1) // PLAN.alignment * PLAN.alignment
    return len(after) == len(before) and after[last_frame:] != before[last_frame:]


@pytest.mark.parametrize("packs", [True, False], ids=["packed", "plain"])
def test_a_strangers_damage_is_refused_or_harmless_and_never_read(packs, seed, monkeypatch):
    """Random damage to frames, seals, tables and packed segments: no wrong event, no loss without a refusal."""
    monkeypatch.setattr("journal.verification._IN_FLIGHT_PAUSE_S", 0.0)
    rng = random.Random(f"{seed}-{packs}")
    whole, last = packed_journal(packs=packs)
    newest = max(whole)
    counts: Counter[str] = Counter()
    for _ in range(150):
        images = dict(whole)
        what = damage(images, rng)
        if images == whole or newest not in images:
            continue  # nothing changed; or the newest is gone, which only an anchor tells
        said = ask(images, last, PLAN)
        counts["opened" if said.opened == "opened" else "refused"] += 1
        counts["clean to verify"] += said.verdict is Verdict.CLEAN
        counts["wrong"] += said.counts["wrong"]
        if only_an_anchor_tells(whole[newest], images[newest]):
            counts["the end overwritten"] += 1
        elif said.counts["lost"] or (said.verdict is Verdict.CLEAN and "twice" not in what):
            print(f"{what}: {said}")
            counts["found"] += 1

    print(told("strangers", seed, counts))
    assert (counts["found"], counts["wrong"]) == (0, 0)
    assert counts["the end overwritten"] < 20
    assert counts["refused"] > 50


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_file_in_the_folder_is_no_surprise(quick_path, name):
    """A file that is no segment is ignored or refused by name, and never hides an event."""
    plan = Plan(seed="outside", turns=12)
    folder = quick_path / "journal"
    acks = Acks()
    with open_journal(folder, plan) as journal:
        begin_journal(journal)
        write(journal, plan, acks)
    (folder / name).write_bytes(b"not ours")

    counts = examine(folder, plan, acks)

    assert (counts["lost"], counts["wrong"]) == (0, 0)
    refused = [what for what in counts if what.startswith("refused")]
    assert bool(refused) == (".wal" in name)


def test_a_clock_that_jumps_loses_and_hides_nothing(quick_path):
    """Clocks go back by an hour, to zero, or far ahead.

    Numbers give the order, and a time is found where first reached.
    """
    hour, now = 3_600_000_000_000, 1_700_000_000_000_000_000
    walls = [now, now - hour, 0, now + 1, now + 2**60, now - 1, now + 2]
    with open_journal(quick_path / "journal", Plan()) as journal:
        begin_journal(journal)
        for seq, wall in enumerate(walls, start=1):
            journal.commit([counted(seq)], epoch=0, step=seq, wall_ns=wall, mono_ns=wall // 7)

    with Reader(quick_path / "journal") as reader:
        entries = list(reader)
        first = next(iter(reader.seek(time_ns=now + 1)))

    assert [entry.seq for entry in entries] == list(range(1, len(walls) + 1))
    assert [entry.wall_ns for entry in entries] == walls
    assert first.seq == 4
    assert verify(quick_path / "journal").verdict is Verdict.CLEAN


def test_whoever_wants_to_write_beside_a_writer_is_refused(quick_path):
    """A second writer and a repair need the lock; the first writer is not affected."""
    folder = quick_path / "journal"
    with open_journal(folder, PLAN) as journal:
        begin_journal(journal)
        with pytest.raises(JournalLocked):
            open_journal(folder, PLAN)
        with pytest.raises(JournalLocked):
            repair(folder)
        write(journal, PLAN, Acks())
        last = journal.last_seq

    assert readable(folder, PLAN, Counter()) == last


def test_removing_the_lock_file_lets_no_second_writer_in(quick_path):
    """If a user removes the file `lock` and tries again, the folder is still locked."""
    folder = quick_path / "journal"
    with open_journal(folder, PLAN) as journal:
        begin_journal(journal)
        (folder / "lock").unlink()
        with pytest.raises(JournalLocked):
            open_journal(folder, PLAN)
        write(journal, PLAN, Acks())
        last = journal.last_seq
    with open_journal(folder, PLAN) as journal:
        assert journal.last_seq == last


def test_what_an_earlier_attempt_left_keeps_no_segment_unpacked(quick_path):
    """A failed packing may leave its file; the next attempt replaces it."""
    folder = quick_path / "journal"
    with open_journal(folder, PLAN) as journal:
        begin_journal(journal)
        write(journal, Plan(seed="outside", turns=30, packs=False, longest=700), Acks())
        closed = sorted(folder.glob("*.wal"))[:-1]
        (folder / f"pack-{closed[0].stem}.tmp").write_bytes(b"half a pack")
        pack(journal)

        assert not [path for path in closed if path.exists()]


def test_a_folder_that_is_taken_away_is_told_and_loses_nothing_acknowledged(quick_path):
    """The folder is moved under a live writer: it continues in its open segment and reports what it cannot do."""
    plan = Plan(seed="moved", turns=60, packs=False)
    folder, moved = quick_path / "journal", quick_path / "moved"
    acks = Acks()
    journal = open_journal(folder, plan)
    begin_journal(journal)
    folder.rename(moved)
    with pytest.raises((JournalError, OSError)):
        write(journal, plan, acks)
    journal.close()

    assert acks.acked > 0
    counts = examine(moved, plan, acks)
    assert (counts["lost"], counts["wrong"]) == (0, 0)


def test_a_fork_of_an_open_journal_writes_nothing_and_frees_nothing(quick_path):
    """The child may use its copy in any way: the parent's journal stays complete and locked."""
    folder = quick_path / "journal"
    acks = Acks()
    with open_journal(folder, PLAN) as journal:
        begin_journal(journal)
        write(journal, PLAN, acks)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                journal.commit([counted(1)], epoch=0, step=0, wall_ns=0, mono_ns=0)
            except JournalError:
                status = 0
            finally:
                journal.close()
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        with pytest.raises(JournalLocked):
            open_journal(folder, PLAN)
        write(journal, PLAN, acks)

    counts = examine(folder, PLAN, acks)
    assert (counts["lost"], counts["wrong"], counts["clean start"]) == (0, 0, 1)


def test_a_reader_keeps_up_while_segments_close_and_are_packed(quick_path):
    """A follower, a search and verify beside a writer that rotates and packs: every event once, in order."""
    folder = quick_path / "journal"
    plan = Plan(seed="follow", turns=150, segment_bytes=20 * 512, alignment=512, longest=300, background=True)
    journal = open_journal(folder, plan)
    begin_journal(journal)
    done = threading.Event()
    counts: Counter[str] = Counter()
    seen = [0]

    def follow() -> None:
        with Reader(folder) as reader:
            seen[0] = judge_records(reader.follow(poll_s=0.001, until=done.is_set), counts, longest=plan.longest)

    def look() -> None:
        while not done.is_set():
            counts["damage seen"] += verify(folder).verdict not in (Verdict.CLEAN, Verdict.TORN_TAIL)
            with Reader(folder) as reader:
                tail = [entry.seq for entry in reader.tail(40)]
                counts["wrong"] += tail != list(range(tail[0], tail[-1] + 1)) if tail else 0

    threads = [threading.Thread(target=follow), threading.Thread(target=look)]
    for thread in threads:
        thread.start()
    write(journal, plan, Acks())
    last, segments = journal.last_seq, journal.statistics().segment_no
    journal.close()
    done.set()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert not [thread for thread in threads if thread.is_alive()]
    assert (counts["wrong"], counts["damage seen"], seen[0]) == (0, 0, last)
    assert segments > 5


def test_a_journal_without_its_files_says_so(quick_path):
    """No folder, an empty one, or only a lock: reported as missing, and a reader creates nothing."""
    nowhere, empty = quick_path / "nowhere", quick_path / "empty"
    empty.mkdir()

    for folder in (nowhere, empty):
        with pytest.raises(JournalMissing):
            Reader(folder)
        with pytest.raises(JournalMissing):
            verify(folder)

    assert not nowhere.exists()
    assert list(empty.iterdir()) == []


def test_a_mark_of_somebody_else_is_not_taken(quick_path):
    """Only the journal writes frames about its files; a caller cannot write a seal."""
    with open_journal(quick_path / "journal", PLAN) as journal:
        begin_journal(journal)
        for kind in (FrameKind.SEAL, FrameKind.POISON, FrameKind.STEP_TABLE, FrameKind.EVENTS):
            with pytest.raises(JournalError):
                journal.mark(kind, b"\xc0", wall_ns=0, mono_ns=0)

    assert verify(quick_path / "journal").verdict is Verdict.CLEAN
