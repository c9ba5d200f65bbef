"""CONFIRM of the fast tier: what was restored from memory has the digests that were recorded when it was copied there.

The digests are taken on a second thread, piece by piece, while the copy goes on. Promises: every tensor of the run's state
is compared, and everything that is no tensor, as the run would capture it now. It must not know: where the state lies.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Final

from tolariad.trainer.checkpoints.capture import capture
from tolariad.trainer.checkpoints.restore import copy_all
from tolariad.trainer.checkpoints.tensors import raw_bytes
from tolariad.trainer.rollback.slots import digest_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from tolariad.trainer.checkpoints.snapshot import Position
    from tolariad.trainer.rollback.slots import Table
    from tolariad.trainer.setup import Setup

_PIECE_BYTES: Final = 64 * 1024 * 1024
_Key = tuple[int, int]


class Confirmation:
    """One restore from memory: `copy` while it goes on, `differing` once it is over."""

    def __init__(self) -> None:
        self._pieces: queue.SimpleQueue[list[torch.Tensor]] = queue.SimpleQueue()
        self._found: dict[_Key, int] = {}
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._hash, name="rollback-confirm", daemon=True)
        self._thread.start()

    def copy(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Copy each second tensor into its first, a piece at a time."""
        piece: list[tuple[torch.Tensor, torch.Tensor]] = []
        size = 0
        for pair in pairs:
            piece.append(pair)
            size += pair[0].numel() * pair[0].element_size()
            if size >= _PIECE_BYTES:
                self._copy(piece)
                piece, size = [], 0
        self._copy(piece)

    def _copy(self, piece: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        if piece:
            copy_all(piece)
            self._pieces.put([live for live, _ in piece])

    def _hash(self) -> None:
        try:
            while piece := self._pieces.get():
                for live in piece:
                    self._found[_key(live)] = digest_of(raw_bytes(live))
        except Exception as error:  # noqa: BLE001 - raised again by whoever waits for the digests
            self._error = error

    def close(self) -> None:
        """End the thread; what it has found stays."""
        self._pieces.put([])
        self._thread.join()

    def differing(self, setup: Setup, position: Position, table: Table) -> Iterator[str]:
        """What the run holds now and `table` does not, or otherwise, by name."""
        self.close()
        if self._error is not None:
            raise self._error
        now = capture(setup, position)
        for group in sorted(now.tensors.keys() ^ table.groups.keys()):
            yield group
        for group, rows in table.groups.items():
            held = now.tensors.get(group, {})
            expected = {row.name: row.xxh3 for row in rows}
            for name in sorted(held.keys() ^ expected.keys()):
                yield f"{group}: {name}"
            for name, tensor in held.items():
                if name in expected and self._digest(tensor) != expected[name]:
                    yield f"{group}: {name}"
        if digest_of(now.state) != table.state_xxh3:
            yield table.state_group

    def _digest(self, tensor: torch.Tensor) -> int:
        found = self._found.get(_key(tensor))
        return digest_of(raw_bytes(tensor)) if found is None else found


def _key(tensor: torch.Tensor) -> _Key:
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()
