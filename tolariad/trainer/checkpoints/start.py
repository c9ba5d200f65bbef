"""The start of training: restore what the order names, from disk, from memory, or from another run's checkpoint.

Promises: everything is verified before a byte reaches the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tolariad.storage import CheckpointUnusable
from tolariad.trainer.checkpoints.parent import begin_from
from tolariad.trainer.checkpoints.restore import load, restore
from tolariad.trainer.rollback.slots import verify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tolariad.core.checkpoints.words import CheckpointRef, TrainFrom
    from tolariad.trainer.checkpoints.loaded import Loaded
    from tolariad.trainer.checkpoints.snapshot import Position
    from tolariad.trainer.rollback.slots import Slots
    from tolariad.trainer.setup import Setup


class Begun(NamedTuple):
    """The starting point. `parent`: the checkpoint that it is, or descends from."""

    position: Position
    parent: str


def begin(
    setup: Setup, order: TrainFrom, checkpoints: Path, slots: Slots | None, each: Callable[[], None]
) -> Begun | None:
    """Restore what the order names. Return None if the run starts as it was built. Raises CheckpointUnusable.

    `each` is called from time to time.
    """
    ref = order.checkpoint
    if ref is None:
        if order.parent is not None:
            begin_from(setup, order.parent, each)
        return None
    loaded, parent = _from_memory(ref, slots, each) if ref.slot is not None else _from_disk(ref, checkpoints, each)
    return Begun(restore(setup, loaded), parent)


def _from_disk(ref: CheckpointRef, checkpoints: Path, each: Callable[[], None]) -> tuple[Loaded, str]:
    return load(checkpoints / ref.id, ref.manifest, each), ref.id


def _from_memory(ref: CheckpointRef, slots: Slots | None, each: Callable[[], None]) -> tuple[Loaded, str]:
    """Read a snapshot that an earlier trainer wrote before it died."""
    each()
    if slots is None or ref.slot is None:
        raise CheckpointUnusable(f"slot {ref.slot}", "this trainer has no memory for snapshots")
    held = slots.read(ref.slot, ref.manifest)
    verify(held)
    each()
    return held.loaded, held.table.parent
