"""CONFIRM of the fast tier: what was restored from memory has the digests that were recorded when it was copied there.

The digests are taken while the copy goes on, by more threads than one, of each piece as soon as it lies in its place.
Promises: every tensor of the run's state is compared, and everything that is no tensor, as the run would capture it now.
It must not know: where the state lies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tolariad.trainer.checkpoints import lanes
from tolariad.trainer.checkpoints.capture import capture

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from tolariad.storage.slot import Table
    from tolariad.trainer.checkpoints.snapshot import Position
    from tolariad.trainer.setup import Setup


class Confirmation:
    """One restore from memory: `copy` makes it, `differing` tells what of it is not as it was recorded."""

    def __init__(self) -> None:
        self._digests = lanes.Digests()

    def copy(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Copy each second tensor into its first, and take the digests of what is there then."""
        lanes.copy(pairs, self._digests)

    def differing(self, setup: Setup, position: Position, table: Table) -> Iterator[str]:
        """What the run holds now and `table` does not, or otherwise, by name."""
        now = capture(setup, position)
        for group in sorted(now.tensors.keys() ^ table.groups.keys()):
            yield group
        for group, rows in table.groups.items():
            held = now.tensors.get(group, {})
            expected = {row.name: row.xxh3 for row in rows}
            for name in sorted(held.keys() ^ expected.keys()):
                yield f"{group}: {name}"
            for name, tensor in held.items():
                if name in expected and self._digests.of(tensor) != expected[name]:
                    yield f"{group}: {name}"
        if lanes.digest_of(now.state) != table.state_xxh3:
            yield table.state_group
