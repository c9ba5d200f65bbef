"""A reader, a start and `verify` describe the same damage with the same sentence and place."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from journal import Journal, verify
from tests.journal.make import SMALL, MemoryFiles, begin, commit, event, read_all, write_all_back
from tests.journal.test_packing import fill, pack

FOLDER = Path("/journal")


@pytest.fixture(scope="module")
def images():
    """A journal of several sealed segments and one that is not full."""
    files = MemoryFiles()
    journal = begin(Journal.open(FOLDER, segment_bytes=64 * SMALL, alignment=SMALL, files=files))
    for number in range(200):
        commit(journal, [event(number)], step=number)
    journal.close()
    return files.snapshot()


def flip(image: bytearray, draw: random.Random) -> None:
    """Flip one bit."""
    image[draw.randrange(len(image))] ^= 1 << draw.randrange(8)


def copy(image: bytearray, draw: random.Random) -> None:
    """Write one block over another."""
    to, source = (draw.randrange(len(image) // SMALL) * SMALL for _ in range(2))
    image[to : to + SMALL] = image[source : source + SMALL]


def cut(image: bytearray, draw: random.Random) -> None:
    """Cut off the end of the file."""
    del image[draw.choice((0, 10, SMALL, len(image) // 2, len(image) - 1)) :]


def lengthen(image: bytearray, draw: random.Random) -> None:
    """Add bytes after the end of the file."""
    image += bytes(draw.choice((1, SMALL, 64 * SMALL)))


def erase(image: bytearray, draw: random.Random) -> None:
    """Zero one block, which may contain the header."""
    at = draw.randrange(4) * SMALL
    image[at : at + SMALL] = bytes(SMALL)


def compare(folder: Path, images: dict[Path, bytes], told: Counter[str]) -> None:
    """Read, open and verify one damaged journal; all three must say the same."""
    problem = verify(folder, files=MemoryFiles(images)).problem
    said = problem.sentence if problem is not None else None
    for who, look in (("read", read_all), ("open", write_all_back)):
        error = look(folder, MemoryFiles(images))[1]
        if error is not None:
            assert str(error) == said, who
            assert problem is not None
            told[f"{who} {problem.damage}"] += 1


@pytest.mark.sample(2)
@pytest.mark.parametrize("damage", [flip, copy, cut, lengthen, erase], ids=lambda one: one.__name__)
def test_a_reader_a_start_and_verify_say_the_same_of_a_damaged_file(images, damage, seed):
    """Every segment in turn, also the newest one."""
    draw, told = random.Random(seed), Counter()
    for path in sorted(path for path in images if path.suffix == ".wal"):
        for _ in range(25):
            image = bytearray(images[path])
            damage(image, draw)
            compare(FOLDER, {**images, path: bytes(image)}, told)

    print(f"{damage.__name__}: {dict(told)}")
    assert {key.partition(" ")[0] for key in told} == {"read", "open"}


def test_they_say_the_same_of_files_that_are_missing_exchanged_or_foreign(images):
    """No byte inside a file is wrong."""
    told: Counter[str] = Counter()
    paths = sorted(path for path in images if path.suffix == ".wal")
    for path in paths[:-1]:
        compare(FOLDER, {other: image for other, image in images.items() if other != path}, told)
    compare(FOLDER, {**images, paths[0]: images[paths[1]], paths[1]: images[paths[0]]}, told)
    compare(FOLDER, {**images, FOLDER / "notes.wal": b"x"}, told)

    assert told["read missing_segment"] >= len(paths) - 1
    assert told["open misplaced"] == 2


def test_they_say_the_same_of_a_packed_segment(tmp_path, seed):
    """One of its bits is flipped, or its end is missing."""
    fill(tmp_path, count=25)
    pack(tmp_path)
    images = {path: path.read_bytes() for path in tmp_path.iterdir() if path.suffix in (".wal", ".zst")}
    draw, told = random.Random(seed), Counter()
    for path in (path for path in images if path.suffix == ".zst"):
        for damage in (flip, flip, flip, cut):
            image = bytearray(images[path])
            damage(image, draw)
            compare(tmp_path, {**images, path: bytes(image)}, told)

    assert told["read packed"]
