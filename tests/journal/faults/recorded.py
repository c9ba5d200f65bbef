"""Fault class 7: the writer's system calls are recorded, and every disk that a crash may leave is examined.

This does what ALICE does for applications. The calls below `Files` are recorded with their data. The log is cut after
every call. For each cut it makes the disks that a file system may leave in the worst case. Synced data is there. Of
unsynced changes there are none, all, all but one, or a single one. Of the write in flight there is any part. Each disk
is examined as by the next start.

A write is synced if its descriptor has O_DSYNC or its file was fsynced later. A name is synced if its folder was
fsynced later.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest import mock

import msgspec

from tests.journal.faults.harness import Acks

SECTOR = 512
# How much of the write in flight arrived: from its start, or everything but so much at its start.
TORN_AT = (SECTOR, 3 * SECTOR, 4096)


class Op(msgspec.Struct, frozen=True):
    """One call, or one report of the writer: `trying`, `acknowledged`."""

    kind: str
    path: str = ""
    target: str = ""
    offset: int = 0
    data: bytes = b""
    synced: bool = False
    number: int = 0


class Recorder:
    """Records all calls below one folder inside a `with` block."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.ops: list[Op] = []
        self._opened: dict[int, tuple[str, bool]] = {}
        self._patches: contextlib.ExitStack = contextlib.ExitStack()

    def __enter__(self) -> Recorder:
        for name in (
            "open",
            "close",
            "pwrite",
            "pwritev",
            "fsync",
            "fdatasync",
            "rename",
            "unlink",
            "mkdir",
            "ftruncate",
        ):
            around = getattr(self, f"_{name}")
            real = getattr(os, name)
            self._patches.enter_context(mock.patch.object(os, name, self._wrapped(real, around)))
        return self

    def __exit__(self, *_exc: object) -> None:
        self._patches.close()

    @staticmethod
    def _wrapped(real: Callable, note: Callable) -> Callable:
        def call(*arguments, **more):
            result = real(*arguments, **more)
            note(result, *arguments)
            return result

        return call

    def _here(self, path: object) -> str | None:
        name = os.fspath(path) if not isinstance(path, int) else ""
        return str(name) if str(name).startswith(self.root) else None

    def _open(self, result, path, flags, *_mode, **_more):
        name = self._here(path)
        if name is None:
            return
        self._opened[result] = (name, bool(flags & os.O_DSYNC))
        if flags & os.O_CREAT and flags & os.O_EXCL:
            self.ops.append(Op("create", name))
        elif flags & os.O_CREAT and os.fstat(result).st_size == 0:
            self.ops.append(Op("create", name))  # the lock file

    def _close(self, _result, descriptor):
        self._opened.pop(descriptor, None)

    def _pwrite(self, result, descriptor, data, offset):
        if descriptor in self._opened:
            name, synced = self._opened[descriptor]
            self.ops.append(Op("write", name, offset=offset, data=bytes(data)[:result], synced=synced))

    def _pwritev(self, result, descriptor, buffers, offset, *_flags):
        self._pwrite(result, descriptor, b"".join(bytes(part) for part in buffers), offset)

    def _fsync(self, _result, descriptor):
        if descriptor in self._opened:
            name = self._opened[descriptor][0]
            self.ops.append(Op("sync folder" if Path(name).is_dir() else "sync", name))

    _fdatasync = _fsync

    def _ftruncate(self, _result, descriptor, length):
        if descriptor in self._opened:
            self.ops.append(Op("truncate", self._opened[descriptor][0], offset=length))

    def _rename(self, _result, source, target, **_more):
        if self._here(source):
            self._opened = {
                number: (str(target) if name == str(source) else name, synced)
                for number, (name, synced) in self._opened.items()
            }
            self.ops.append(Op("rename", str(source), str(target)))

    def _unlink(self, _result, path, **_more):
        if self._here(path):
            self.ops.append(Op("unlink", str(path)))

    def _mkdir(self, _result, path, *_mode, **_more):
        if self._here(path):
            self.ops.append(Op("mkdir", str(path)))


class RecordedAcks(Acks):
    """Puts the writer's reports between its calls."""

    def __init__(self, recorder: Recorder, acked: int = 0) -> None:
        super().__init__(acked)
        self.recorder = recorder

    def trying(self, last: int) -> None:
        super().trying(last)
        self.recorder.ops.append(Op("trying", number=last))

    def acknowledged(self, last: int) -> None:
        super().acknowledged(last)
        self.recorder.ops.append(Op("acknowledged", number=last))


class Inode:
    """A file: its content on disk, and the writes that are only in memory."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.pending: list[Op] = []


class CrashDisk:
    """The disk at one moment of a log: what is durable, and what may or may not be there."""

    def __init__(self, images: dict[Path, bytes]) -> None:
        self.now: dict[str, Inode | None] = {str(path): Inode(image) for path, image in images.items()}
        self.durable = dict(self.now)
        self.changes: list[tuple[Op, Inode | None]] = []

    def apply(self, op: Op) -> None:
        """Apply one call that has returned."""
        if op.kind == "write":
            self._write(op)
        elif op.kind == "sync":
            inode = self._inode(op.path)
            for pending in inode.pending:
                put(inode.data, pending.offset, pending.data)
            inode.pending.clear()
        elif op.kind == "sync folder":
            mine = [one for one in self.changes if str(Path(one[0].path).parent) == op.path]
            for one in mine:
                change(self.durable, *one)
                self.changes.remove(one)
        elif op.kind in ("create", "mkdir", "rename", "unlink"):
            inode = Inode() if op.kind == "create" else self.now.get(op.path)
            self.changes.append((op, inode))
            change(self.now, op, inode)

    def _inode(self, path: str) -> Inode:
        inode = self.now[path]
        if inode is None:
            raise TypeError(f"{path} is a folder")
        return inode

    def _write(self, op: Op) -> None:
        inode = self._inode(op.path)
        if op.synced:
            put(inode.data, op.offset, op.data)
        else:
            inode.pending.append(op)

    def crashes(self) -> Iterator[tuple[str, dict[Path, bytes]]]:
        """Yield the disks that a crash at this moment may leave, each with its name."""
        pending: list[object] = [*self.changes, *self._unsynced()]
        yield "nothing that was not synced", self.image([])
        if pending:
            yield "everything", self.image(pending)
        if len(pending) > 1:
            for one in pending:
                yield "everything but one", self.image([other for other in pending if other is not one])
                yield "one alone", self.image([one])

    def _unsynced(self) -> list[tuple[Inode, Op]]:
        inodes = {id(inode): inode for inode in self.now.values() if inode is not None}
        return [(inode, op) for inode in inodes.values() for op in inode.pending]

    def image(self, kept: Sequence[object]) -> dict[Path, bytes]:
        """Return the disk with these unsynced changes."""
        names = dict(self.durable)
        for one in self.changes:
            if one in kept:
                change(names, *one)
        images = {}
        for path, inode in names.items():
            if inode is None or not _reachable(path, names, self.now):
                continue
            data = bytearray(inode.data)
            for op in inode.pending:
                if any(isinstance(one[0], Inode) and one[1] is op for one in kept):
                    put(data, op.offset, op.data)
            images[Path(path)] = bytes(data)
        return images


def _reachable(path: str, names: dict[str, Inode | None], known: dict[str, Inode | None]) -> bool:
    """Return whether every folder above a file that was made in the log has its name."""
    parents = [str(parent) for parent in Path(path).parents]
    return all(parent in names for parent in parents if parent in known)


def put(data: bytearray, offset: int, written: bytes) -> None:
    """Write into a byte array as into a file."""
    if len(data) < offset:
        data.extend(bytes(offset - len(data)))
    data[offset : offset + len(written)] = written


def change(names: dict[str, Inode | None], op: Op, inode: Inode | None) -> None:
    """Apply one change of names."""
    if op.kind != "create" and op.kind != "mkdir":
        names.pop(op.path, None)
    if op.kind != "unlink":
        names[op.target or op.path] = inode


def crash_states(ops: Sequence[Op], disk: CrashDisk, acks: Acks) -> Iterator[tuple[str, dict[Path, bytes], Acks]]:
    """Yield every disk that a crash after or inside any call may leave, with the reports until then."""
    for number, op in enumerate(ops):
        if op.kind == "trying":
            acks.trying(op.number)
            continue
        if op.kind == "acknowledged":
            acks.acknowledged(op.number)
            # Between the return of the write and the next call: from now on a caller may rely on it.
            for name, image in disk.crashes():
                yield f"acknowledged {op.number}, {name}", image, copy_of(acks)
            continue
        if op.kind == "write" and len(op.data) > SECTOR:
            yield from _torn(disk, op, number, acks)
        disk.apply(op)
        for name, image in disk.crashes():
            yield f"call {number} {op.kind}, {name}", image, copy_of(acks)


def _torn(disk: CrashDisk, op: Op, number: int, acks: Acks) -> Iterator[tuple[str, dict[Path, bytes], Acks]]:
    path = next((target for target in disk.image(disk.changes) if str(target) == op.path), None)
    for at in TORN_AT:
        if at >= len(op.data) or path is None:
            continue
        image = disk.image(disk.changes)
        for name, start, data in (("beginning", op.offset, op.data[:at]), ("rest", op.offset + at, op.data[at:])):
            torn = bytearray(image[path])
            put(torn, start, data)
            torn.extend(bytes(max(0, op.offset + len(op.data) - len(torn))) if len(torn) > op.offset else b"")
            yield f"call {number} torn, {name} {at}", {**image, path: bytes(torn)}, copy_of(acks)


def copy_of(acks: Acks) -> Acks:
    """Return a copy of the acknowledgements for an examination that continues from them."""
    copied = Acks(acks.acked)
    copied.trying(max(acks.tried, acks.acked))
    return copied
