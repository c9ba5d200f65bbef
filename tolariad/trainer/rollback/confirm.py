"""CONFIRM: compare the restored state with the recorded one.

A restore from memory compares digests: of every tensor, computed piece by piece during the copy, with the recorded
ones. A restore from disk captures the run's state again and compares it with the checkpoint, bit for bit.

Promises: model, optimizer, random states, boundary orders, rates, detector, moving average and participants are
compared. The task's own state and the data's are compared by the fast tier only. When a task loads from disk, it may
convert state that an older version saved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tolariad.trainer.checkpoints import lanes
from tolariad.trainer.checkpoints.capture import capture
from tolariad.trainer.checkpoints.restore import taken_apart

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from tolariad.storage.snapshot_slot import Table
    from tolariad.trainer.checkpoints.loaded import Loaded
    from tolariad.trainer.checkpoints.snapshot import Position
    from tolariad.trainer.setup import Setup


class Confirmation:
    """One restore from memory: `copy` does it, `differing` compares it with the record."""

    def __init__(self) -> None:
        self._digests = lanes.Digests()

    def copy(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Copy the second tensor of each pair into the first, and compute the digests of the result."""
        lanes.copy(pairs, self._digests)

    def differing(self, setup: Setup, position: Position, table: Table) -> Iterator[str]:
        """Yield the names of everything that differs between the run and `table`."""
        now = capture(setup, position)
        for group in sorted(now.tensors.keys() | table.groups.keys()):
            held = now.tensors.get(group, {})
            expected = {row.name: row.xxh3 for row in table.groups.get(group, ())}
            for name in sorted(held.keys() | expected.keys()):
                if name not in held or self._digests.of(held[name]) != expected.get(name):
                    yield f"{group}: {name}"
        if lanes.digest_of(now.state) != table.state_xxh3:
            yield table.state_group


def differing(setup: Setup, loaded: Loaded, position: Position) -> Iterator[str]:
    """Yield the names of everything that differs between the run and the checkpoint restored from disk."""
    now = taken_apart(capture(setup, position))
    for part in setup.parts:
        yield from part.differing(now, loaded)
