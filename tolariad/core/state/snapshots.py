"""Snapshots: slice, apply table.

A snapshot is taken of a healthy state. It is promoted after `watch_steps` healthy steps; a rollback uses promoted ones
only. A restart after a trainer's death begins from the newest one, promoted or not, because a restart must not undo
anything.

Invariants: one is taken at a time. The newest promoted one and the oldest watched one are never overwritten. The memory
belongs to the daemon: when the daemon ends, all snapshots are gone.
"""

from math import isfinite
from typing import Annotated, Final, Protocol

import msgspec
from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core.calc.bounds import storable
from tolariad.core.state.fates import COUNTER, NEW_BRANCH, set_back, survives
from tolariad.core.state.fold import ApplyTable

# With one slot there would be no snapshot to go back to while the next one is taken.
SNAPSHOT_SLOTS_MIN: Final = 2
SNAPSHOT_SLOTS_MAX: Final = 64


class KeptSnapshot(msgspec.Struct, frozen=True):
    """A snapshot that can be restored.

    `begun_seq`: as for a checkpoint. `watched_from`: healthy steps count from it.
    """

    id: str
    slot: int
    step: int
    epoch: int
    batch: int
    branch: int
    table: str
    begun_seq: int
    watched_from: int
    promoted: bool = False
    orders: int | None = None

    @property
    def script_from(self) -> int:
        """Return the first event of a script that begins at this snapshot."""
        return self.begun_seq

    @property
    def ref(self) -> m.CheckpointRef:
        """Return the fields that the trainer needs."""
        return m.CheckpointRef(
            id=self.id, step=self.step, epoch=self.epoch, batch=self.batch, manifest=self.table, slot=self.slot
        )

    @property
    def position(self) -> tuple[int, int, int]:
        """Return step, epoch and batch."""
        return self.step, self.epoch, self.batch


class OpenSnapshot(msgspec.Struct, frozen=True):
    """A snapshot that was ordered and has not ended yet."""

    id: str
    slot: int
    branch: int
    cause: m.Cause
    orders: int = 0


class BranchSnapshots(msgspec.Struct, frozen=True, omit_defaults=True):
    """What of the snapshots belongs to a branch: its last step that was not healthy."""

    unhealthy_step: int = 0


_GONE: Final = set_back("snapshots after the target are gone; the others are watched anew")
_DUE: Final = set_back("the next one is due as if the target were the last, and taken now")
_MEMORY: Final = survives("the memory, and the snapshot that is being taken")
_COST: Final = survives("what a snapshot costs, and whether the data can stop, does not depend on the branch")


class Snapshots(BranchSnapshots, frozen=True, omit_defaults=False):
    """Slice of RunState: the usable snapshots in the order they were taken.

    `last_step`, `last_mono`, `last_epoch`: as of the last order; the step is then that of the snapshot itself. `fresh`:
    none was ordered since the ring was opened, or since a rollback left none. `off`: why there are none. `narrow`: the
    only slots that may be used while memory is short. `cost_s`: how long the last one took, hashes included. `in_vain`:
    how many were aborted since.
    """

    begun: Annotated[int, COUNTER] = 0
    ring: Annotated[m.Ring | None, _MEMORY] = None
    off: Annotated[str, _MEMORY] = ""
    open: Annotated[OpenSnapshot | None, _MEMORY] = None
    kept: Annotated[tuple[KeptSnapshot, ...], _GONE] = ()
    branch: Annotated[int, NEW_BRANCH] = 0
    fresh: Annotated[bool, _GONE] = False
    last_step: Annotated[int, _DUE] = 0
    last_epoch: Annotated[int, _DUE] = 0
    narrow: Annotated[tuple[int, ...], _MEMORY] = tuple(range(SNAPSHOT_SLOTS_MIN))
    last_mono: Annotated[int, _DUE] = 0
    cost_s: Annotated[float, _COST] = 0.0
    in_vain: Annotated[int, _COST] = 0

    @property
    def next_id(self) -> str:
        """Return the name of the next snapshot. No name is used twice."""
        return f"s{self.begun + 1:06d}"

    @property
    def promoted(self) -> tuple[KeptSnapshot, ...]:
        """Return the snapshots that a rollback may use, oldest first."""
        return tuple(one for one in self.kept if one.promoted)

    @property
    def pinned(self) -> tuple[KeptSnapshot, ...]:
        """Return the snapshots that are never overwritten: the newest promoted one, and the one to promote next."""
        return self.promoted[-1:] + tuple(one for one in self.kept if not one.promoted)[:1]

    @property
    def surplus(self) -> tuple[str, ...]:
        """Return the snapshots to give up if memory is short. With one that is being taken, two slots stay in use."""
        stays = self.pinned[: SNAPSHOT_SLOTS_MIN - (self.open is not None)]
        return tuple(one.id for one in self.kept if one not in stays)

    def find(self, id_: str) -> KeptSnapshot | None:
        """Return the snapshot of that name, or None."""
        return next((one for one in self.kept if one.id == id_), None)


class HasSnapshots(Protocol):
    """A state with this slice."""

    @property
    def snapshots(self) -> Snapshots:
        """Return the snapshots."""


def _daemon_started(s: Snapshots, _: m.DaemonStarted, __: m.Cause) -> Snapshots:
    # An open snapshot still needs its end, which the start records.
    return Snapshots(begun=s.begun, branch=s.branch, open=s.open)


def _opened(s: Snapshots, e: m.SnapshotRingOpened, _: m.Cause) -> Snapshots:
    return replace(s, ring=m.Ring(e.slots, e.slot_bytes), off="", kept=(), fresh=True, last_mono=e.mono)


def _disabled(s: Snapshots, e: m.FastTierDisabled, _: m.Cause) -> Snapshots:
    return replace(s, off=e.why)


def _begun(s: Snapshots, e: m.SnapshotBegun, at: m.Cause) -> Snapshots:
    return replace(
        s,
        begun=s.begun + 1,
        open=OpenSnapshot(e.id, e.slot, e.branch, at, e.orders),
        kept=tuple(one for one in s.kept if one.slot != e.slot),
        fresh=False,
        last_step=max(s.last_step, storable(e.step)),
        last_mono=e.mono,
        last_epoch=e.epoch_finished,
    )


def _taken(s: Snapshots, e: m.SnapshotTaken, at: m.Cause) -> Snapshots:
    begun_seq = s.open.cause.seq if s.open else at.seq
    kept = KeptSnapshot(e.id, e.slot, e.step, e.epoch, e.batch, e.branch, e.table, begun_seq, e.step, orders=e.orders)
    # If a rollback went back to before it meanwhile, it is not part of the run.
    living = (*s.kept, kept)[-SNAPSHOT_SLOTS_MAX:] if e.branch == s.branch else s.kept
    return replace(s, open=None, kept=living, last_step=e.step, cost_s=_finite(e.seconds), in_vain=0)


def _finite(seconds: float) -> float:
    return seconds if isfinite(seconds) else 0.0


def _aborted(s: Snapshots, _: m.SnapshotAborted, __: m.Cause) -> Snapshots:
    return replace(s, open=None, in_vain=s.in_vain + 1)


def _promoted(s: Snapshots, e: m.SnapshotPromoted, _: m.Cause) -> Snapshots:
    return replace(s, kept=tuple(replace(one, promoted=True) if one.id == e.id else one for one in s.kept))


def _rejected(s: Snapshots, e: m.SnapshotRejected, _: m.Cause) -> Snapshots:
    return replace(s, kept=tuple(one for one in s.kept if one.id != e.id))


def _unhealthy(s: Snapshots, e: m.InstabilityDetected, _: m.Cause) -> Snapshots:
    """Count healthy steps anew for every snapshot that is being watched."""
    watched = tuple(one if one.promoted else replace(one, watched_from=max(one.watched_from, e.step)) for one in s.kept)
    return replace(s, kept=watched, unhealthy_step=e.step)


def _pressed(s: Snapshots, e: m.MemoryPressed, _: m.Cause) -> Snapshots:
    kept = tuple(one for one in s.kept if one.id not in e.snapshots)
    used = [one.slot for one in kept] + ([s.open.slot] if s.open is not None else [])
    unused = [slot for slot in range(SNAPSHOT_SLOTS_MIN) if slot not in used]
    return replace(s, kept=kept, narrow=tuple(sorted(used + unused[: max(0, SNAPSHOT_SLOTS_MIN - len(used))])))


def snapshots_at(s: Snapshots, e: m.RolledBack) -> Snapshots:
    """Return the snapshots without those after the fork.

    Of those at the fork only the target is known to hold the same state.
    """
    fork = (e.step, e.epoch, e.batch)
    kept = tuple(one for one in s.kept if one.position < fork or one.id == e.checkpoint)
    watched = tuple(one if one.promoted else replace(one, watched_from=e.step) for one in kept)
    return replace(
        s,
        branch=e.branch,
        kept=watched,
        fresh=s.ring is not None and not kept,
        last_step=e.step,
        last_mono=e.mono,
        last_epoch=storable(min(s.last_epoch, e.epoch - 1)),
    )


APPLY: Final[ApplyTable] = {
    m.DaemonStarted: _daemon_started,
    m.SnapshotRingOpened: _opened,
    m.FastTierDisabled: _disabled,
    m.SnapshotBegun: _begun,
    m.SnapshotTaken: _taken,
    m.SnapshotAborted: _aborted,
    m.SnapshotPromoted: _promoted,
    m.SnapshotRejected: _rejected,
    m.InstabilityDetected: _unhealthy,
    m.MemoryPressed: _pressed,
}
