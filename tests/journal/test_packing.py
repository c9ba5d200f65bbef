"""Packed segments: a thirtieth of the space, the same bytes for every reader, one good copy at every moment."""

from __future__ import annotations

import contextlib
import io
import random
import shutil
import subprocess
import threading
from collections import Counter
from pathlib import Path

import pytest
import zstandard
from msgspec.structs import replace

from journal import (
    Damage,
    Files,
    Journal,
    JournalDamaged,
    JournalError,
    Reader,
    RepairAction,
    Verdict,
    plan_repair,
    repair,
    summarize,
    verify,
)
from journal.packing import Packer
from journal.quarantine import set_aside
from journal.segment import list_segments
from tests.journal import from_the_page
from tests.journal.make import SECOND_NS, FaultyFiles, MemoryFiles, begin, commit, event, numbered, read_all
from tests.journal.test_power_cut import FOLDER, SIZES, Disk, PowerCut
from tests.waiting import within
from tolariad.core import messages as m
from tolariad.core.messages.vocabulary import encode_event

SEGMENT = 16 * 4096
# The part of the unsynced bytes that reaches the disk is drawn: seldom the one thing without the other.
DRAWS = 3


def fill(folder: Path, count: int = 60, files: Files | None = None, segment_bytes: int = SEGMENT) -> list[bytes]:
    """Return a closed journal of several segments; if `files` fails, one begins after a failed write."""
    written = [event(n, size=n * 37 % 3000) for n in range(1, count + 1)]
    with begin(Journal.open(folder, segment_bytes=segment_bytes, files=files or Files())) as journal:
        for n, one in enumerate(written, start=1):
            commit(journal, [one], step=n)
    return written


def pack(folder: Path, files: Files | None = None) -> Packer:
    packer = Packer(files or Files(), folder, pause_s=0)
    packer.pack_all()
    return packer


def unpacked(path: Path) -> bytes:
    with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(path.read_bytes()), read_across_frames=True) as stream:
        return stream.read()


def seen(folder: Path) -> dict[str, object]:
    """Return the answers to all questions that a reader can ask."""
    with Reader(folder) as reader:
        found: dict[str, object] = {
            "entries": [(one.seq, one.wall_ns, one.epoch, one.step, bytes(one.event)) for one in reader],
            "captures": [(one.seq, one.body) for one in reader.captures()],
            "tails": [[one.seq for one in reader.tail(count)] for count in (1, 7, 30, 1000)],
            "last": reader.last_seq,
        }
        for key, places in (("seq", range(1, 61, 7)), ("step", range(1, 61, 7)), ("epoch", (1, 3, 5))):
            found[key] = [next(iter(reader.seek(**{key: place}))).seq for place in places]
        found["time"] = [next(iter(reader.seek(time_ns=n * SECOND_NS))).seq for n in range(1, 61, 7)]
        found["records"] = len(list(reader.records(33)))
    return found


def test_a_reader_sees_no_difference(tmp_path):
    """Events, captures, last entries, all ways of seeking and verify are the same, also after a failed write.

    Only the size of the files is another one, and verify gives it.
    """
    files = FaultyFiles("pwrite", 30, 30, "short")
    written = fill(tmp_path, files=files)
    before, report = seen(tmp_path), verify(tmp_path)
    images = {path.name: path.read_bytes() for path in tmp_path.glob("*.wal")}

    packer = pack(tmp_path)

    packed = sorted(path.name for path in tmp_path.glob("*.zst"))
    assert packed == [f"{name}.zst" for name in sorted(images)[:-1]]
    assert (packer.packed, packer.last_error) == (len(packed), None)
    assert [path.name for path in tmp_path.glob("*.wal")] == sorted(images)[-1:]
    assert seen(tmp_path) == before
    again = verify(tmp_path)
    assert replace(again, file_bytes=report.file_bytes) == report
    assert again.file_bytes == sum(path.stat().st_size for path in tmp_path.glob("*.wal*")) < report.file_bytes
    assert report.verdict is Verdict.CLEAN
    assert [(seq, raw) for seq, _, _, _, raw in before["entries"]] == numbered(written)
    assert [seq for seq, _ in from_the_page.read(tmp_path)] == list(range(1, 61))
    for name in packed:
        assert unpacked(tmp_path / name) == images[name.removesuffix(".zst")]


def test_two_who_ask_at_once_do_not_pack_one_segment_twice(tmp_path, caplog):
    """The background thread and a caller meet at every segment: each is packed once, complete, without an error."""
    written = fill(tmp_path, count=200)
    barrier = threading.Barrier(4)

    class Meeting(Files):
        """All threads read the folder at the same moment."""

        def names(self, folder: Path) -> list[str]:
            with contextlib.suppress(threading.BrokenBarrierError):
                barrier.wait(0.02)
            return super().names(folder)

    packer = Packer(Meeting(), tmp_path, pause_s=0)
    threads = [threading.Thread(target=packer.pack_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    packed = sorted(tmp_path.glob("*.zst"))
    assert (packer.packed, packer.last_error) == (len(packed), None)
    # There was no error on the way either: a later success would reset it.
    assert [record.message for record in caplog.records] == []
    assert len(packed) > 3
    assert read_all(tmp_path, Files()) == (numbered(written), None)


def test_the_zstd_tool_gives_the_segment_back(tmp_path):
    """`zstd -d`, a foreign program, unpacks it to the same bytes."""
    if shutil.which("zstd") is None:
        pytest.skip("the zstd command is not installed")
    fill(tmp_path)
    image = min(tmp_path.glob("*.wal")).read_bytes()
    pack(tmp_path)

    found = subprocess.run(["zstd", "-dc", min(tmp_path.glob("*.zst"))], capture_output=True, check=True)
    assert found.stdout == image


def test_writing_goes_on_after_packed_segments(tmp_path):
    """A journal of packed segments opens, and its newest segment is continued."""
    written = fill(tmp_path)
    pack(tmp_path)
    with begin(Journal.open(tmp_path, segment_bytes=SEGMENT)) as journal:
        more = [event(1000 + n) for n in range(30)]
        for one in more:
            commit(journal, [one], step=1000)

    assert read_all(tmp_path, Files()) == (numbered([*written, *more]), None)
    assert verify(tmp_path).verdict is Verdict.CLEAN


def test_segments_are_packed_as_they_are_closed_and_a_follower_misses_nothing(tmp_path):
    """Segments are packed in a live journal while a reader follows; the thread ends with the journal."""
    written = [event(n) for n in range(150)]
    with begin(Journal.open(tmp_path, segment_bytes=SEGMENT)) as journal:
        journal.start_preparing()
        got = []
        reader = Reader(tmp_path)
        for n, one in enumerate(written):
            commit(journal, [one], step=n)
            if n % 40 == 0:
                got += [bytes(entry.event) for entry in reader]
        closed = journal.statistics().segment_no - 1
        assert within(60.0, lambda: journal.statistics().packed >= closed)
        got += [bytes(entry.event) for entry in reader]
        assert (journal.statistics().packed, journal.statistics().pack_error) == (closed, None)
    assert got == written
    assert len(list(tmp_path.glob("*.wal"))) == 1
    assert verify(tmp_path).verdict is Verdict.CLEAN


def test_a_power_cut_at_any_operation_of_packing_leaves_one_good_copy(seed):
    """Power is cut at operation 1, 2, 3 and so on, with several draws of surviving data: every event exists."""
    written = [event(n, size=n * 97 % 1500) for n in range(40)]
    start = MemoryFiles()
    with begin(Journal.open(FOLDER, files=start, **SIZES)) as journal:
        for one in written:
            commit(journal, [one])
    rng, found, cut = random.Random(seed), Counter[str](), 0
    while True:
        cut += 1
        disk = Disk(start.snapshot(), 1 + cut // DRAWS, rng)
        try:
            pack(FOLDER, disk)
        except PowerCut:
            pass
        else:
            break
        after = MemoryFiles(disk.after_the_cut())
        both = [path for path in after.images if path.with_name(path.name + ".zst") in after.images]
        found["both" if both else "one"] += 1
        assert read_all(FOLDER, after) == (numbered(written), None)
        assert verify(FOLDER, files=after).verdict is Verdict.CLEAN
        with begin(Journal.open(FOLDER, files=after, **SIZES)) as journal:
            assert commit(journal, [event(0)]) == 41
            pack(FOLDER, after)
        assert sum(path.suffix == ".wal" for path in after.images) == 1
        assert read_all(FOLDER, after) == (numbered([*written, event(0)]), None)
    print(f"packing cut at {cut // DRAWS} operations: {dict(found)}, events lost 0")
    assert found["both"] > 2


def test_a_packed_form_that_a_crash_spoilt_is_made_again(tmp_path):
    """If a packed file does not unpack to its segment, the segment counts and is packed again."""
    written = fill(tmp_path)
    first = min(tmp_path.glob("*.wal"))
    first.with_name(first.name + ".zst").write_bytes(b"\0" * 1000)
    assert read_all(tmp_path, Files()) == (numbered(written), None)

    assert pack(tmp_path).last_error is None
    assert not first.exists()
    assert read_all(tmp_path, Files()) == (numbered(written), None)


def test_a_segment_whose_packed_form_differs_is_left_alone(tmp_path):
    """If the disk changes a byte, reading back notices it and the segment stays."""

    class Changing(Files):
        def pwrite(self, descriptor, data, offset):
            spoilt = bytes([data[0], *data[1:100], data[100] ^ 1]) + data[101:] if len(data) > 101 else data
            return super().pwrite(descriptor, spoilt, offset)

    written = fill(tmp_path)
    packer = pack(tmp_path, Changing())

    assert packer.packed == 0
    assert "differs" in str(packer.last_error)
    assert not [path for path in tmp_path.iterdir() if path.suffix in {".zst", ".tmp"}]
    assert read_all(tmp_path, Files()) == (numbered(written), None)


def test_no_flipped_bit_of_a_packed_segment_goes_unseen(tmp_path, seed):
    """For one bit of every byte verify reports damage, opening refuses, and no reader gets a wrong event."""
    written = fill(tmp_path, count=25)
    pack(tmp_path)
    start = MemoryFiles({path: path.read_bytes() for path in tmp_path.iterdir()})
    victim = min(path for path in start.images if path.suffix == ".zst")
    rng, expected = random.Random(seed), numbered(written)
    for at in range(len(start.images[victim])):
        files = MemoryFiles(start.snapshot())
        files.images[victim][at] ^= 1 << rng.randrange(8)
        assert verify(tmp_path, files=files).verdict in (Verdict.DAMAGED, Verdict.TOO_NEW)
        got, error = read_all(tmp_path, files)
        assert error is not None
        assert got == expected[: len(got)]
    with pytest.raises(JournalDamaged) as caught:
        Journal.open(tmp_path, files=files)
    assert caught.value.damage is Damage.PACKED


def test_a_packed_segment_without_a_successor_means_that_one_is_missing(tmp_path):
    """Only segments with a successor are packed, so a missing newest segment is noticed."""
    fill(tmp_path)
    pack(tmp_path)
    (newest,) = tmp_path.glob("*.wal")
    newest.unlink()

    with pytest.raises(JournalDamaged, match="is missing") as caught:
        Journal.open(tmp_path, segment_bytes=SEGMENT)
    assert caught.value.damage is Damage.MISSING_SEGMENT
    assert verify(tmp_path).verdict is Verdict.DAMAGED


def test_repair_does_not_write_into_a_packed_segment(tmp_path):
    """Damage in one is refused without any change; a torn tail after it is still cut."""
    fill(tmp_path)
    pack(tmp_path)
    (newest,) = tmp_path.glob("*.wal")
    victim = min(tmp_path.glob("*.zst"))
    good, image = victim.read_bytes(), bytearray(newest.read_bytes())
    victim.write_bytes(good[:500] + bytes([good[500] ^ 1]) + good[501:])
    files = {path: path.read_bytes() for path in tmp_path.glob("*.wal*")}
    assert (plan_repair(tmp_path).action, repair(tmp_path).action) == (RepairAction.REFUSED, RepairAction.REFUSED)
    assert {path: path.read_bytes() for path in tmp_path.glob("*.wal*")} == files

    victim.write_bytes(good)
    torn = -(-len(bytes(image).rstrip(b"\0")) // 4096) * 4096  # where the next frame would begin
    image[torn : torn + 50] = b"x" * 50
    newest.write_bytes(image)
    assert repair(tmp_path).action is RepairAction.CUT_TAIL
    assert verify(tmp_path).verdict is Verdict.CLEAN


def test_nothing_is_set_aside_in_a_packed_segment(tmp_path):
    """Zeroing some of its bytes would destroy a whole piece, so it is refused."""
    fill(tmp_path)
    pack(tmp_path)
    segment = list_segments(Files(), tmp_path)[0]
    image = segment.path.read_bytes()

    with pytest.raises(JournalError, match="never written to"):
        set_aside(Files(), segment, 100, 200)

    assert segment.path.read_bytes() == image


def test_a_step_takes_at_most_200_bytes_packed(tmp_path, seed):
    """Steps as a run writes them, one in a frame, with changing losses, norms and rates; all bytes count."""
    rng, wall, mono = random.Random(seed), 1_790_000_000_000_000_000, 12_345_678_901
    with begin(Journal.open(tmp_path, segment_bytes=400 * 4096, first_bytes=400 * 4096)) as journal:
        for n in range(1, 500):
            wall, mono = wall + int(rng.gauss(1.1e6, 1e5)), mono + int(rng.gauss(1.1e6, 1e5))
            numbers = {
                "loss": rng.random(),
                "grad_norm": rng.random(),
                "lr": rng.random(),
                "rates": rng.getrandbits(63),
            }
            step = m.StepCompleted(step=n, epoch=n // 25, batch=n % 25, wall=wall, mono=mono, root=n, **numbers)
            journal.commit([encode_event(step)], epoch=n // 25, step=n, wall_ns=wall, mono_ns=mono)
    pack(tmp_path)

    found = summarize(tmp_path)
    assert (found.segments_packed, found.bytes_a_step) == (1, 4096)
    assert found.packed_bytes == sum(path.stat().st_size for path in tmp_path.glob("*.zst"))
    print(f"a step packed: {found.bytes_a_step_packed:.0f} bytes")
    assert 50 < found.bytes_a_step_packed <= 200
