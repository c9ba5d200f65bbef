"""Snapshots in memory: the ring they lie in, the events from order to promotion, the messages for the trainer.

A snapshot is SnapshotBegun, then exactly one of SnapshotTaken and SnapshotAborted. SnapshotBegun frees whatever its
slot held before.
"""

import msgspec

from tolariad.core.calc.units import Batch, Bytes, Epoch, Hex, Seconds, Step
from tolariad.core.messages.base import DaemonEffect, Event, Report, TrainerEffect


class Ring(msgspec.Struct, frozen=True):
    """Slots of equal size in one memory file. The file outlives a trainer, but not its daemon."""

    slots: int
    slot_bytes: Bytes


class SnapshotRingOpened(Event, frozen=True, kw_only=True):
    """The daemon allocated the memory for snapshots. From now on snapshots are taken."""

    slots: int
    slot_bytes: Bytes


class FastTierDisabled(Event, frozen=True, kw_only=True):
    """No snapshots are taken, and every rollback uses the full tier. `size`: what one snapshot would need."""

    why: str
    size: Bytes = 0


class SnapshotBegun(Event, frozen=True, kw_only=True):
    """A snapshot was ordered into `slot`. Any older snapshot in that slot is gone.

    `epoch_finished`: the newest epoch whose end was recorded before; the snapshot itself may be of a state before that
    end. `orders`: how many boundary orders had acted. `step`: the last recorded one; the next snapshot is due after it.
    """

    id: str
    slot: int
    branch: int = 0
    epoch_finished: int = 0
    orders: int = 0
    step: Step = 0


class SnapshotTaken(Event, frozen=True, kw_only=True):
    """The copy is in its slot. Every value of it is finite, and its step was durable before.

    `table` is the digest of the table of names, places and digests beside it. `xxh3` holds the digest of each tensor,
    16 digits each, in the table's order. `state` is the digest of everything that is not a tensor. `orders`: how many
    boundary orders it contains. `held_s`: how long training waited for the copy.
    """

    id: str
    slot: int
    step: Step
    epoch: Epoch
    batch: Batch
    branch: int
    size: Bytes
    table: Hex
    xxh3: Hex
    state: Hex
    orders: int
    held_s: Seconds = 0.0
    seconds: Seconds = 0.0


class SnapshotAborted(Event, frozen=True, kw_only=True):
    """The snapshot was not taken, and its slot is free."""

    id: str
    why: str


class SnapshotPromoted(Event, frozen=True, kw_only=True):
    """Enough healthy steps followed the snapshot: a rollback may use it."""

    id: str


class SnapshotRejected(Event, frozen=True, kw_only=True):
    """A snapshot failed its verification by the trainer or the daemon, and is gone."""

    id: str
    why: str


class PrepareRing(DaemonEffect, frozen=True, kw_only=True):
    """To the daemon: allocate memory for at most `slots` snapshots of `slot_bytes` each, within `memory` bytes.

    Without `memory`, use a share of what is free. The result comes back as an input.
    """

    slot_bytes: Bytes
    slots: int
    memory: Bytes | None = None


class VerifySnapshot(DaemonEffect, frozen=True, kw_only=True):
    """To the daemon: compare the contents of `slot` with their digests. A difference comes back as an input."""

    id: str
    slot: int
    table: Hex


class UseRing(TrainerEffect, frozen=True, kw_only=True):
    """To the trainer: how the memory that it was given at its start is divided.

    It may hold snapshots of an earlier trainer.
    """

    ring: Ring


class TakeSnapshot(TrainerEffect, frozen=True, kw_only=True):
    """To the trainer: at the next boundary, once its step is durable, copy the run's state into `slot`."""

    id: str
    slot: int


class SnapshotSizeReport(Report, frozen=True, kw_only=True):
    """The size that a slot should have, and the least it must have. Sent once the optimizer has a state."""

    size: Bytes
    least: Bytes


class SnapshotTakenReport(Report, frozen=True, kw_only=True):
    """The snapshot is copied, hashed, and all its values are finite."""

    id: str
    step: Step
    epoch: Epoch
    batch: Batch
    size: Bytes
    table: Hex
    xxh3: Hex
    state: Hex
    orders: int
    held_s: Seconds
    seconds: Seconds


class SnapshotFailedReport(Report, frozen=True, kw_only=True):
    """Snapshot `id` cannot be used; training goes on."""

    id: str
    why: str
