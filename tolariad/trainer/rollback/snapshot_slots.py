"""Snapshots in the arena: how one is laid out in its slot, and how this or a later trainer reads it.

`Snapshot.copied_into` lays out the tensors; `storage.slot` defines the rest of a slot. Promises: a snapshot that is
read has the table whose digest the journal holds, and `verify` compares everything else with that table. A slot that
is being written cannot be read.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import torch

from tolariad.storage import CheckpointUnusable
from tolariad.storage.snapshot_slot import Table, TensorRow, encode_table, head, table_of
from tolariad.trainer.checkpoints.buffers import HostBuffer, room_of, view
from tolariad.trainer.checkpoints.lanes import digest_of, take_digests
from tolariad.trainer.checkpoints.restore import taken_apart
from tolariad.trainer.checkpoints.snapshot import Position, Snapshot
from tolariad.trainer.checkpoints.tensors import BY_NAME, entry_of, raw_bytes
from tolariad.trainer.process.threads import stand_back

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tolariad.core import messages as m
    from tolariad.trainer.checkpoints.loaded import Loaded

_PREFIX: Final = 4096
_ROW_BYTES: Final = 160
_MARGIN: Final = 64 * 1024
_POPULATE_PIECE: Final = 64 * 1024 * 1024
_MADV_POPULATE_READ, _MADV_POPULATE_WRITE = 22, 23


@dataclass(frozen=True)
class SlotContent:
    """A snapshot in its slot. Its tensors are views of the slot's memory."""

    snapshot: Snapshot
    table: Table

    @property
    def loaded(self) -> Loaded:
        """The state, decoded for `restore`. Raises CheckpointUnusable."""
        return replace(taken_apart(self.snapshot), acted=self.table.acted)


class _SlotBuffer(HostBuffer):
    """A slot as the target buffer of a snapshot's copy."""

    def __init__(self, memory: torch.Tensor) -> None:
        super().__init__()
        self._memory = memory

    def reserve(self, size: int) -> None:
        if _PREFIX + size > self.size:
            raise ValueError(f"the tensors need {_PREFIX + size} bytes, a slot has {self.size}")
        self._used = _PREFIX

    @property
    def used(self) -> int:
        """Offset of the first free byte."""
        return self._used


def slot_bytes(live: Snapshot, *, growth: int = 0) -> int:
    """Return the slot size for such a state, with `growth` more bytes for the part that is not tensors."""
    rows = sum(len(held) for held in live.tensors.values())
    return _PREFIX + live.room + room_of(len(live.state) + growth) + room_of(rows * _ROW_BYTES + growth)


def growth_of(live: Snapshot) -> int:
    """Return an allowance for the growth, during a run, of the part that is not tensors."""
    return len(live.state) + _MARGIN


class Slots:
    """The mapped arena. Raises ValueError if the file is smaller than `ring` says."""

    def __init__(self, descriptor: int, ring: m.Ring) -> None:
        size = ring.slots * ring.slot_bytes
        if os.fstat(descriptor).st_size < size:
            raise ValueError(f"the snapshot memory has {os.fstat(descriptor).st_size} bytes, but the order says {size}")
        self.ring = ring
        self._descriptor = descriptor
        self._mapped = mmap.mmap(descriptor, size)
        self._whole = torch.frombuffer(self._mapped, dtype=torch.uint8)
        self._touching: threading.Thread | None = None
        self._stops = False
        # Slots whose memory was given back.
        self._empty: set[int] = set()

    def touch(self) -> None:
        """Map the pages into this process in the background, so that a snapshot's copy takes no page faults.

        Call it when training has begun: before that, a trainer that starts from a slot needs other pages first.
        """
        if self._touching is None:
            self._touching = threading.Thread(target=self._touch, name="snapshot-memory", daemon=True)
            self._touching.start()

    def _touch(self) -> None:
        stand_back()
        _populate(self._whole, _MADV_POPULATE_WRITE, lambda: self._stops)

    def narrow(self, slots: Sequence[int]) -> None:
        """Give the memory of all slots but these back to the system, until `widen` or a copy into the slot."""
        self._stops = True
        if self._touching is not None:
            # It must not map memory again that is given back here. It takes one piece more at most.
            self._touching.join()
        size = self.ring.slot_bytes
        self._empty = set(range(self.ring.slots)).difference(slots)
        for slot in self._empty:
            self._mapped.madvise(mmap.MADV_REMOVE, slot * size, size)

    @property
    def held_bytes(self) -> int:
        """The bytes of all slots whose memory is not given back."""
        return (self.ring.slots - (len(self._empty) if self._stops else 0)) * self.ring.slot_bytes

    def widen(self) -> None:
        """Use every slot again. `touch` brings their memory back."""
        self._stops, self._touching = False, None

    def memory(self, slot: int) -> torch.Tensor:
        """Return the bytes of one slot. Raises CheckpointUnusable if there is no such slot."""
        if not 0 <= slot < self.ring.slots:
            raise CheckpointUnusable(f"slot {slot}", f"there are only {self.ring.slots} slots")
        return self._whole[slot * self.ring.slot_bytes : (slot + 1) * self.ring.slot_bytes]

    def copy(self, slot: int, live: Snapshot) -> Snapshot:
        """Copy the tensors into the slot; its old content becomes unreadable.

        Raises ValueError if they do not fit, OSError if the system has no memory for a slot that was given back.
        """
        memory = self.memory(slot)
        if slot in self._empty:
            # A write to memory that the system cannot provide would kill the process.
            os.posix_fallocate(self._descriptor, slot * self.ring.slot_bytes, self.ring.slot_bytes)
            self._empty.discard(slot)
        memory[:_PREFIX].zero_()
        return live.copied_into(_SlotBuffer(memory))

    def finish(self, slot: int, copied: Snapshot, acted: tuple[int, ...], parent: str) -> tuple[Table, str]:
        """Hash the copied tensors, write the rest after them, and make the slot readable. Return table and digest.

        Raises ValueError if the rest does not fit.
        """
        memory = self.memory(slot)
        state_first = _PREFIX + copied.room
        table = Table(
            step=copied.position.step,
            epoch=copied.position.epoch,
            batch=copied.position.batch,
            acted=acted,
            parent=parent,
            groups={group: _rows(held, memory) for group, held in copied.tensors.items()},
            aliases=copied.aliases,
            transient=copied.transient,
            state_group=copied.state_group,
            state_first=state_first,
            state_size=len(copied.state),
            state_xxh3=digest_of(copied.state),
        )
        encoded, digest = encode_table(table)
        table_first = state_first + room_of(len(copied.state))
        if table_first + len(encoded) > memory.numel():
            raise ValueError(f"the snapshot needs {table_first + len(encoded)} bytes, but a slot has {memory.numel()}")
        _put(memory, state_first, copied.state)
        _put(memory, table_first, encoded)
        # Invariant: the head is written last. Until then no reader takes the slot as valid.
        _put(memory, 0, head(table_first, len(encoded)))
        return table, digest

    def read(self, slot: int, digest: str) -> SlotContent:
        """Return the snapshot whose table has this digest. Raises CheckpointUnusable if the slot does not hold it."""
        memory = self.memory(slot)
        _populate(memory, _MADV_POPULATE_READ)

        def read(first: int, size: int) -> bytes:
            return bytes(raw_bytes(memory[first : first + size]))

        table = table_of(slot, memory.numel(), digest, read)
        snapshot = Snapshot(
            position=Position(table.step, table.epoch, table.batch),
            tensors={group: _views(rows, memory) for group, rows in table.groups.items()},
            aliases=table.aliases,
            transient=table.transient,
            state=read(table.state_first, table.state_size),
            state_group=table.state_group,
        )
        if digest_of(snapshot.state) != table.state_xxh3:
            raise CheckpointUnusable(table.state_group, f"slot {slot} differs from its recorded digest")
        return SlotContent(snapshot, table)


def _populate(memory: torch.Tensor, how: int, stops: Callable[[], bool] = lambda: False) -> None:
    """Map all pages of `memory` at once, instead of one by one at their first access, until `stops`."""
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    first = memory.data_ptr() & -mmap.PAGESIZE
    for at in range(first, memory.data_ptr() + memory.numel(), _POPULATE_PIECE):
        size = min(_POPULATE_PIECE, memory.data_ptr() + memory.numel() - at)
        if stops() or madvise(at, size, how) != 0:
            return  # an older kernel: each first access takes a page fault


def verify(held: SlotContent) -> None:
    """Compare every tensor with its digest. Raises CheckpointUnusable, naming the first that differs."""
    digests = take_digests(tensor for group in held.snapshot.tensors.values() for tensor in group.values())
    for group, rows in held.table.groups.items():
        for row in rows:
            if digests.of(held.snapshot.tensors[group][row.name]) != row.xxh3:
                raise CheckpointUnusable(group, f"{row.name} differs from its recorded digest")


def _rows(held: dict[str, torch.Tensor], memory: torch.Tensor) -> tuple[TensorRow, ...]:
    rows = []
    for name, tensor in held.items():
        entry = entry_of(name, tensor)
        first = tensor.data_ptr() - memory.data_ptr() if entry.size else 0
        rows.append(TensorRow(name, entry.dtype, entry.shape, first, entry.size, digest_of(raw_bytes(tensor))))
    return tuple(rows)


def _views(rows: tuple[TensorRow, ...], memory: torch.Tensor) -> dict[str, torch.Tensor]:
    found = {}
    for row in rows:
        dtype = BY_NAME[row.dtype]
        found[row.name] = view(memory, row.first, row, dtype) if row.size else torch.empty(row.shape, dtype=dtype)
    return found


def _put(memory: torch.Tensor, first: int, data: bytes) -> None:
    if data:
        memory[first : first + len(data)].copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
