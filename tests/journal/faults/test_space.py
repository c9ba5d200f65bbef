"""Fault class 10: file systems that are really full, broken or limited; the kernel returns the errors."""

from __future__ import annotations

import mmap
import os
import resource
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.conftest import MEMORY
from tests.journal.faults.harness import Acks, Plan, examine, told
from tests.journal.faults.mounts import MEBIBYTE, Writer, call, cannot_mount, ext4_image, mounted, paged_loop

PLAN = Plan(seed="space", turns=400, segment_bytes=20 * 4096)
TINY = Plan(seed="space", turns=400, segment_bytes=8 * 4096)
# Longer, because packing frees space if the machine lets it keep up with the writer.
BACKGROUND = Plan(seed="space", turns=4000, segment_bytes=20 * 4096, background=True)
Place = tuple[Path, Callable[[], Path]]  # where the journal is written, and where it is found when there is space again


@contextmanager
def small_tmpfs(scratch: Path, *options: str) -> Iterator[Place]:
    """A file system in memory with a limit, which grows before the next start."""
    with mounted("tmpfs", scratch / "small", *options, kind="tmpfs") as there:

        def grown() -> Path:
            call("mount", "-o", "remount,size=64m,nr_inodes=1000", there)
            return there

        yield there, grown


@contextmanager
def full_ext4(scratch: Path, left: int) -> Iterator[Place]:
    """An ext4 that is full except for this many bytes, and is emptied before the next start."""
    image = ext4_image(scratch / "image", 24 * MEBIBYTE)
    with mounted(image, scratch / "full") as there:
        filler = there / "filler"
        free = shutil.disk_usage(there).free - left
        filler.write_bytes(bytes(free))

        def emptied() -> Path:
            filler.unlink()
            return there

        yield there, emptied


@contextmanager
def broken_loop(scratch: Path, backing: str) -> Iterator[Place]:
    """An ext4 whose disk is shorter than it claims: writes beyond it are I/O errors. Repaired before the next start."""
    with mounted("tmpfs", scratch / "store", f"size={backing}", kind="tmpfs") as store, ExitStack() as mounts:
        image = ext4_image(store / "image", 24 * MEBIBYTE, "-b", "4096")
        there = mounts.enter_context(mounted(mounts.enter_context(paged_loop(image)), scratch / "broken"))

        def mended() -> Path:
            # Unmount while it is still broken, so that nothing becomes durable now.
            mounts.close()
            healthy = scratch / "healthy.image"
            shutil.copy(image, healthy)
            return mounts.enter_context(mounted(healthy, scratch / "healthy"))

        yield there, mended


@contextmanager
def plenty(scratch: Path) -> Iterator[Place]:
    """Enough space; only the process is limited."""
    folder = scratch / "plenty"
    folder.mkdir()
    yield folder, lambda: folder


def short_files() -> None:
    """Limit the length of files: a batch that needs a longer segment gets EFBIG."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (90_000, 90_000))


def few_files() -> None:
    """Limit the number of descriptors."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))


def nothing() -> None:
    """Set no limit."""


CASES: dict[str, tuple[Callable, tuple, Plan, Callable[[], None]]] = {
    "a tmpfs of 64 KiB": (small_tmpfs, ("size=64k",), TINY, nothing),
    "a tmpfs with room for three segments": (small_tmpfs, ("size=280k",), PLAN, nothing),
    "a tmpfs with room for three, spares made aside": (small_tmpfs, ("size=280k",), BACKGROUND, nothing),
    "a tmpfs with room for six files": (small_tmpfs, ("nr_inodes=8",), PLAN, nothing),
    "a full ext4 with room for one segment": (full_ext4, (100_000,), PLAN, nothing),
    "a full ext4 with room for three segments": (full_ext4, (300_000,), PLAN, nothing),
    "a full ext4, spares made aside": (full_ext4, (300_000,), BACKGROUND, nothing),
    "a disk that ends early": (broken_loop, ("3m",), PLAN, nothing),
    "a disk that ends a little later": (broken_loop, ("4m",), PLAN, nothing),
    "a disk that ends early, spares made aside": (broken_loop, ("4m",), BACKGROUND, nothing),
    "a limit on the length of files": (plenty, (), PLAN, short_files),
    "a limit on open files": (plenty, (), PLAN, few_files),
}
SHORT = ("a tmpfs with room for three segments", "a full ext4, spares made aside", "a limit on the length of files")


def run(name: str, scratch: Path, seed: int) -> Counter[str]:
    """Write until it fails, then start with space again: every acknowledged event exists, and it continues."""
    reason = cannot_mount()
    if reason:
        pytest.skip(reason)
    where, arguments, plan, limit = CASES[name]
    with where(scratch, *arguments) as (there, healed):
        status, acks = Writer(there / "journal", plan, prepare=limit).end()
        counts: Counter[str] = Counter({f"writer's status {status}": 1, "acknowledged": acks.acked})
        folder = healed() / "journal"
        counts.update(examine(folder, plan, copy_of(acks)))
    counts["refused"] += sum(number for what, number in counts.items() if what.startswith("refused:"))
    print(told(f"class 10, {name}", seed, counts))
    return counts


def copy_of(acks: Acks) -> Acks:
    copied = Acks(acks.acked)
    copied.trying(max(acks.tried, acks.acked))
    return copied


def check(name: str, counts: Counter[str]) -> None:
    assert [counts[what] for what in ("lost", "wrong", "refused", "not clean at the end")] == [0, 0, 0, 0]
    assert counts["writer's status 0"] + counts["writer's status 3"] == 1, counts
    if name != "a limit on open files":
        assert counts["writer's status 3"] == 1, "it was to run out of space"
    assert counts["acknowledged"] > 0


@pytest.mark.parametrize("name", SHORT)
def test_a_file_system_without_space_loses_nothing_acknowledged(name, seed, place_to_mount):
    """The journal freezes when space ends; with space again it has every acknowledged event and continues."""
    check(name, run(name, place_to_mount, seed))


@pytest.mark.torture
@pytest.mark.parametrize("name", list(CASES))
def test_every_broken_file_system_loses_nothing_acknowledged(name, seed, place_to_mount):
    """All cases, also disks that end before their file system does."""
    check(name, run(name, place_to_mount, seed))


def test_the_broken_disk_never_says_done_of_what_is_not_there(place_to_mount):
    """The cases of a short disk rely on this: a synced write past its end fails and is not cut short."""
    reason = cannot_mount()
    if reason:
        pytest.skip(reason)
    data = mmap.mmap(-1, 32 * 4096)
    data.write(b"x" * len(data))
    with mounted("tmpfs", place_to_mount / "store", "size=64k", kind="tmpfs") as store:
        (store / "image").touch()
        os.truncate(store / "image", MEBIBYTE)
        with paged_loop(store / "image") as device:
            descriptor = os.open(device, os.O_WRONLY | os.O_DIRECT | os.O_DSYNC)
            try:
                assert os.pwrite(descriptor, memoryview(data)[: 8 * 4096], 0) == 8 * 4096
                with pytest.raises(OSError, match="No space"):
                    os.pwrite(descriptor, data, 8 * 4096)
            finally:
                os.close(descriptor)


@pytest.fixture
def place_to_mount(tmp_path):
    """A folder for images and mounts, in memory if possible."""
    if not MEMORY.is_dir():
        yield tmp_path
        return
    folder = MEMORY / f"tolaria-{tmp_path.parent.name}-{tmp_path.name}"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
