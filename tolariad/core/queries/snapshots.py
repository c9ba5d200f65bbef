"""Where training may begin, in memory or on disk, and how a trainer learns of the snapshots' memory."""

from __future__ import annotations

from typing import Protocol, TypeAlias

from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.queries.run_limit import place_to_keep

Restorable: TypeAlias = st.KeptSnapshot | st.CatalogueEntry


class RestorableSlices(st.HasCheckpoints, st.HasSnapshots, Protocol):
    """The slices with every place to begin from."""


class NewestBeyond(st.HasRun, st.HasProgress, st.HasCheckpoints, st.HasSnapshots, Protocol):
    """The slices with the snapshots, and with the epoch's end that still needs a checkpoint."""


class SnapshotsAndTrainer(st.HasTrainer, st.HasSnapshots, Protocol):
    """The slices with the snapshots' memory and the trainer."""


def ring_order(state: SnapshotsAndTrainer) -> tuple[m.UseRing, ...]:
    """Return the order that tells a living trainer how its memory is divided."""
    ring = state.snapshots.ring
    return (m.UseRing(ring=ring),) if ring is not None and state.trainer.alive else ()


def newest_beyond(state: NewestBeyond, checkpoint: st.CatalogueEntry | None) -> st.KeptSnapshot | None:
    """Return the newest snapshot if it is newer than `checkpoint` or there is no checkpoint, else None.

    None also if the place of the best validation lies between the two, and still needs a checkpoint.
    """
    newest = state.snapshots.kept[-1] if state.snapshots.kept else None
    if checkpoint is None:
        return newest
    owed = place_to_keep(state)
    if newest is None or newest.position <= (checkpoint.step, checkpoint.epoch, checkpoint.batch):
        return None
    is_between = owed is not None and (checkpoint.epoch, checkpoint.batch) < owed <= (newest.epoch, newest.batch)
    return None if is_between else newest


def restorable(state: RestorableSlices, id_: str) -> Restorable | None:
    """Return the snapshot or committed checkpoint of that name, or None."""
    return state.snapshots.find(id_) or next((one for one in state.checkpoints.catalogue if one.id == id_), None)
