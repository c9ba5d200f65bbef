"""CONFIRM: compare the restored state with the recorded one.

A restore from memory compares digests: of every tensor, computed piece by piece during the copy, with the recorded
ones. A restore from disk captures the run's state again and compares it with the checkpoint, bit for bit.

Promises: model, optimizer, random states, boundary orders, rates, detector, moving average and participants are
compared. The task's own state and the data's are compared by the fast tier only. When a task loads from disk, it may
convert state that an older version saved.
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
    from tolariad.trainer.checkpoints.loaded import Loaded
    from tolariad.trainer.checkpoints.snapshot import Position
    from tolariad.trainer.setup import Setup

# Parts of the state tree that belong to the run and not to the user's task or loader.
_COMPARED: Final = (
    "model",
    "rng",
    "orders",
    "rates",
    "detector",
    "scaling",
    "architecture",
    "seeds",
    "pruning",
    "strategy",
)


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
    """Yield the names of everything that differs between the run and the checkpoint restored from disk.

    Parts that an older checkpoint does not contain are not compared.
    """
    now = taken_apart(capture(setup, position))
    yield from _differing_tensors("", now.model, loaded.model)
    if loaded.average is not None and now.average is not None:
        yield from _differing_tensors("average ", now.average, loaded.average)
    yield from _differing_tensors("masks ", now.displaced, loaded.displaced)
    for owner, tree in loaded.optimizers.items():
        for key, stored in tree.items():
            yield from _differing(f"{owner or 'optimizer'}.{key}", now.optimizers.get(owner, {}).get(key), stored)
    for key in _COMPARED:
        stored = loaded.state.get(key)
        if stored is not None:
            yield from _differing(f"{STATE_FILE} {key}", now.state.get(key), stored)
    for name, stored in setup.participants.known(loaded.participants).items():
        yield from _differing(f"participant {name}", now.participants[name], stored)


def _differing_tensors(prefix: str, live: dict[str, torch.Tensor], held: dict[str, torch.Tensor]) -> Iterator[str]:
    for name in sorted(live.keys() | held.keys()):
        if name not in live or name not in held or not _same_bits(live[name], held[name]):
            yield f"{prefix}{name}"


def _differing(path: str, live: Any, stored: Any) -> Iterator[str]:
    """Yield the paths of the leaves that differ. Only stored keys count: a newer torch may add options."""
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
            # Compare as hexadecimal text: it distinguishes 0.0 from -0.0, and NaN equals NaN.
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
