"""A run's whole state at one boundary, in memory: live views, a copy in a buffer, or the content of checkpoint files.

Promises: a copy shares no memory with the live state, so training continues at once. Equal states give equal files.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from tolariad.storage.manifest import file_of
from tolariad.storage.tensor_file import distribute, header, layout
from tolariad.trainer.checkpoints.buffers import HostBuffer, room_of, view
from tolariad.trainer.checkpoints.lanes import copy
from tolariad.trainer.checkpoints.tensors import entry_of, raw_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

# Below the limit of one write() and of one object in most stores, and large enough to keep the number of files small.
FILE_BYTES_MAX: Final = 2**30


class Position(msgspec.Struct, frozen=True, gc=False):
    """Step `step` is applied; batch `batch` + 1 of `epoch` comes next. A Struct is cheap: every step creates one."""

    step: int
    epoch: int
    batch: int


class Origin(NamedTuple):
    """Where a copied state comes from.

    `orders`, `acted`: how many boundary orders it contains, and the keys of the newest. `parent`: the checkpoint that
    it descends from. `compactions`: how often channels were removed from its model.
    """

    orders: int
    acted: tuple[int, ...]
    parent: str
    compactions: int


class File(NamedTuple):
    """One file of a checkpoint: its name, its group, and its bytes."""

    name: str
    group: str
    chunks: Sequence[bytes | memoryview]


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """State by group of files. `state` is everything except tensors. A tied tensor is listed under one name only.

    `capture` returns one with the live tensors: copy it before the next batch is taken. In a copy, `memory` holds the
    tensors of each group one after the other, in the order of their files.
    """

    position: Position
    tensors: dict[str, dict[str, torch.Tensor]]
    aliases: dict[str, str]
    transient: tuple[str, ...]
    state: bytes
    state_group: str
    memory: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors and of `state`."""
        return sum(t.nbytes for held in self.tensors.values() for t in held.values()) + len(self.state)

    @property
    def room(self) -> int:
        """The bytes of a buffer that `copied_into` needs."""
        return sum(room_of(sum(t.nbytes for t in held.values())) for held in self.tensors.values())

    def copied_into(self, buffer: HostBuffer) -> Snapshot:
        """Return a copy of this state in `buffer`, in row-major order. The buffer's old content is lost."""
        buffer.reserve(self.room)
        memory, tensors = {}, {}
        for group, held in self.tensors.items():
            memory[group], tensors[group] = _laid(held, buffer)
        copy([(tensors[group][name], tensor) for group, held in self.tensors.items() for name, tensor in held.items()])
        return replace(self, tensors=tensors, memory=memory)

    def files(self, file_bytes: int = FILE_BYTES_MAX) -> Iterator[File]:
        """Yield the files of a checkpoint with this state, each of at most `file_bytes` if it can be split."""
        for group, held in self.tensors.items():
            entries = layout([entry_of(name, tensor) for name, tensor in held.items()])
            first = 0
            for number, parts in enumerate(distribute(entries, file_bytes)):
                size = sum(part.entry.size for part in parts)
                if group in self.memory:
                    data = [raw_bytes(self.memory[group][first : first + size])]
                else:
                    data = [raw_bytes(held[p.entry.name])[p.first : p.first + p.entry.size] for p in parts]
                yield File(file_of(group, number), group, [header([part.entry for part in parts]), *data])
                first += size
        yield File(self.state_group, self.state_group, [self.state])

    def cut(self, file_bytes: int = FILE_BYTES_MAX) -> dict[str, dict[str, tuple[int, ...]]]:
        """Return, by group, the shapes of the tensors that `files` splits over several files."""
        found: dict[str, dict[str, tuple[int, ...]]] = {}
        for group, held in self.tensors.items():
            entries = layout([entry_of(name, tensor) for name, tensor in held.items()])
            for parts in distribute(entries, file_bytes):
                for part in parts:
                    if part.entry.size != held[part.entry.name].numel() * part.entry.element_size:
                        found.setdefault(group, {})[part.entry.name] = tuple(held[part.entry.name].shape)
        return found


def _laid(held: dict[str, torch.Tensor], buffer: HostBuffer) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the part of the buffer for one group, and the target tensors in it."""
    entries = layout([entry_of(name, tensor) for name, tensor in held.items()])
    memory = buffer.take(sum(entry.size for entry in entries))
    copies: dict[str, torch.Tensor] = {}
    first = 0
    for entry in entries:
        copies[entry.name] = view(memory, first, entry, held[entry.name].dtype)
        first += entry.size
    return memory, copies
