"""CONFIRM: the state that was restored is the state that was recorded.

From memory, every tensor has the digest that was recorded when it was copied there; the digests are taken while the copy goes
on, by several threads, of each piece as soon as it lies in its place. From disk, the run's state is captured again and compared
bit by bit with what the checkpoint holds. Promises: model, optimizer, random states, rates, detector and moving average are
compared, as the run would capture them now. The task's own state and the data's are compared in the fast tier alone: from disk,
a task may convert what an older version of it saved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from tolariad.trainer.checkpoints import lanes
from tolariad.trainer.checkpoints.capture import STATE_FILE, capture
from tolariad.trainer.checkpoints.restore import taken_apart
from tolariad.trainer.checkpoints.tree import Stored

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tolariad.storage.slot import Table
    from tolariad.trainer.checkpoints.restore import Loaded
    from tolariad.trainer.checkpoints.snapshot import Position
    from tolariad.trainer.setup import Setup

# Parts of the state tree that belong to the run and not to the user's task or loader.
_COMPARED: Final = ("model", "rng", "rates", "detector", "scaling")


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


def differing(setup: Setup, loaded: Loaded, position: Position) -> Iterator[str]:
    """Names of what the run holds now and the restored checkpoint does not, or with other bits.

    What an older checkpoint does not hold at all is not compared.
    """
    now = taken_apart(capture(setup, position))
    yield from _differing_tensors("", now.model, loaded.model)
    if loaded.average is not None and now.average is not None:
        yield from _differing_tensors("average ", now.average, loaded.average)
    for key, stored in loaded.optimizer.items():
        yield from _differing(f"optimizer.{key}", now.optimizer.get(key), stored)
    for key in _COMPARED:
        stored = loaded.state.get(key)
        if stored is not None:
            yield from _differing(f"{STATE_FILE} {key}", now.state[key], stored)


def _differing_tensors(prefix: str, live: dict[str, torch.Tensor], held: dict[str, torch.Tensor]) -> Iterator[str]:
    for name in sorted(live.keys() | held.keys()):
        if name not in live or name not in held or not _same_bits(live[name], held[name]):
            yield f"{prefix}{name}"


def _differing(path: str, live: Any, stored: Any) -> Iterator[str]:
    """Paths of the leaves that differ. Of a map every stored key is compared: a newer torch may add options of its own."""
    match stored:
        case Stored():
            if not isinstance(live, Stored) or not _same_bits(live.tensor, stored.tensor):
                yield path
        case dict():
            for key, value in stored.items():
                if not isinstance(live, dict) or key not in live:
                    yield f"{path}.{key}"
                else:
                    yield from _differing(f"{path}.{key}", live[key], value)
        case list() | tuple():
            if not isinstance(live, type(stored)) or len(live) != len(stored):
                yield path
            else:
                for index, (one, other) in enumerate(zip(live, stored, strict=True)):
                    yield from _differing(f"{path}.{index}", one, other)
        case np.ndarray():
            if not isinstance(live, np.ndarray) or live.dtype != stored.dtype or live.tobytes() != stored.tobytes():
                yield path
        case float():
            # As hexadecimal: tells zeros of either sign apart, and a NaN equals itself.
            if not isinstance(live, float) or live.hex() != stored.hex():
                yield path
        case _:
            if live != stored:
                yield path


def _same_bits(live: torch.Tensor, stored: torch.Tensor) -> bool:
    if (live.shape, live.dtype) != (stored.shape, stored.dtype):
        return False
    here, there = live.cpu().contiguous(), stored.cpu().contiguous()
    return here.numel() == 0 or torch.equal(here.reshape(-1).view(torch.uint8), there.reshape(-1).view(torch.uint8))
