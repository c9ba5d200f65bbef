"""A run's whole state at one boundary, in memory: as live views, as a copy in a buffer, or out of a checkpoint's files.

Promises: a copy shares no memory with what is trained, so training goes on at once; equal states give equal files.
It must not know: when one is taken, which one is current, or what is done with it.
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

# More than half of what one write() or one object of most stores may hold, and few enough files to look through.
FILE_BYTES_MAX: Final = 2**30


class Position(msgspec.Struct, frozen=True, gc=False):
    """Step `step` is applied; the next thing is batch `batch` + 1 of `epoch`. One is made in every step, so it is made in C."""

    step: int
    epoch: int
    batch: int


class File(NamedTuple):
    """One file of a checkpoint: its name, its group, and its bytes."""

    name: str
    group: str
    chunks: Sequence[bytes | memoryview]


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """State by group of files. `state` is everything that is no tensor; a tied tensor stands under one name only.

    Of `capture` the tensors are the live ones: copy them before the next batch is taken. In a copy, `memory` holds each
    group's tensors one behind the other, in the order of their files.
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
        """Bytes of all tensors and of what is no tensor."""
        return sum(t.numel() * t.element_size() for held in self.tensors.values() for t in held.values()) + len(
            self.state
        )

    @property
    def room(self) -> int:
        """What `copied_into` needs of a buffer."""
        return sum(room_of(sum(t.numel() * t.element_size() for t in held.values())) for held in self.tensors.values())

    def copied_into(self, buffer: HostBuffer) -> Snapshot:
        """The same state in `buffer`'s memory, row by row; what the buffer held before is lost."""
        buffer.reserve(self.room)
        memory, tensors = {}, {}
        for group, held in self.tensors.items():
            memory[group], tensors[group] = _laid(held, buffer)
        copy([(tensors[group][name], tensor) for group, held in self.tensors.items() for name, tensor in held.items()])
        return replace(self, tensors=tensors, memory=memory)

    def files(self, file_bytes: int = FILE_BYTES_MAX) -> Iterator[File]:
        """The files of a checkpoint with this state, none but the last larger than `file_bytes`."""
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
        """By group, the shapes of the tensors that `files` lays into several files."""
        found: dict[str, dict[str, tuple[int, ...]]] = {}
        for group, held in self.tensors.items():
            entries = layout([entry_of(name, tensor) for name, tensor in held.items()])
            for parts in distribute(entries, file_bytes):
                for part in parts:
                    if part.entry.size != held[part.entry.name].numel() * part.entry.element_size:
                        found.setdefault(group, {})[part.entry.name] = tuple(held[part.entry.name].shape)
        return found


def _laid(held: dict[str, torch.Tensor], buffer: HostBuffer) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The buffer's part that is to hold one group, and the tensors in it that are to be copied into."""
    entries = layout([entry_of(name, tensor) for name, tensor in held.items()])
    memory = buffer.take(sum(entry.size for entry in entries))
    copies: dict[str, torch.Tensor] = {}
    first = 0
    for entry in entries:
        copies[entry.name] = view(memory, first, entry, held[entry.name].dtype)
        first += entry.size
    return memory, copies
