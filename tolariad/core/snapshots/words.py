"""Snapshots in memory: the ring they lie in, one from its order to its promotion, and what the trainer is told and tells.

A snapshot is SnapshotBegun, then exactly one of SnapshotTaken and SnapshotAborted. What its slot held before is gone with
the first of them. It must not know: memory files, tensors, when one is due.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from tolariad.core.base import Batch, Bytes, Effect, Epoch, Event, Hex, Message, Seconds, Step


class Ring(msgspec.Struct, frozen=True):
    """Slots of equal size in one memory file, which outlives a trainer and not its daemon."""

    slots: int
    slot_bytes: Bytes


class SnapshotRingOpened(Event, frozen=True, kw_only=True):
    """The memory is there: from now on snapshots are taken."""

    EMITTED_BY: ClassVar[str] = "daemon"

    slots: int
    slot_bytes: Bytes


class FastTierDisabled(Event, frozen=True, kw_only=True):
    """No snapshots are taken, every rollback is by the full tier. `size`: what one would need."""

    EMITTED_BY: ClassVar[str] = "daemon"

    why: str
    size: Bytes = 0


class SnapshotBegun(Event, frozen=True, kw_only=True):
    """A snapshot was ordered into `slot`; what that held is no snapshot any more.

    `epoch_finished`: the newest epoch whose end was recorded before; the snapshot itself may stand before that end. `orders`:
    so many boundary orders had acted.
    """

    id: str
    slot: int
    branch: int = 0
    epoch_finished: int = 0
    orders: int = 0


class SnapshotTaken(Event, frozen=True, kw_only=True):
    """The copy is in its slot, every value of it finite, and its step was durable before.

    `table` covers the table of names, places and digests that lies beside it; `xxh3` holds the digest of each tensor, 16
    digits one behind the other in the table's order, `state` that of everything that is no tensor. It holds `orders` boundary
    orders. `held_s` is how long training stood for the copy.
    """

    EMITTED_BY: ClassVar[str] = "trainer"

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
    """There is no such snapshot; its slot is free."""

    id: str
    why: str


class SnapshotPromoted(Event, frozen=True, kw_only=True):
    """Enough healthy steps came after it: a rollback may go back to it."""

    id: str


class SnapshotRejected(Event, frozen=True, kw_only=True):
    """It failed its verification, the trainer's or the daemon's, and is gone."""

    EMITTED_BY: ClassVar[str] = "trainer"

    id: str
    why: str


class PrepareRing(Effect, frozen=True, kw_only=True):
    """To the daemon: make room for snapshots of `slot_bytes`, `slots` of them at most, within `memory` bytes.

    Without `memory` a share of what is free. What came of it is an input.
    """

    slot_bytes: Bytes
    slots: int
    memory: Bytes | None = None


class VerifySnapshot(Effect, frozen=True, kw_only=True):
    """To the daemon: compare what lies in `slot` with its digests. That it differs is an input."""

    id: str
    slot: int
    table: Hex


class UseRing(Effect, frozen=True, kw_only=True):
    """To the trainer: the memory it was given at its start is divided so; it may hold snapshots of an earlier trainer."""

    ring: Ring


class TakeSnapshot(Effect, frozen=True, kw_only=True):
    """To the trainer: at the next boundary, once its step is durable, copy the run's state into `slot`."""

    id: str
    slot: int


class SnapshotSizeReport(Message, frozen=True, kw_only=True):
    """What a slot should have, and what it must have; told once the optimizer has a state."""

    size: Bytes
    least: Bytes


class SnapshotTakenReport(Message, frozen=True, kw_only=True):
    """Copied, hashed and found finite."""

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


class SnapshotFailedReport(Message, frozen=True, kw_only=True):
    """Nothing of snapshot `id` is to be used; training goes on."""

    id: str
    why: str


EVENTS = (
    SnapshotRingOpened,
    FastTierDisabled,
    SnapshotBegun,
    SnapshotTaken,
    SnapshotAborted,
    SnapshotPromoted,
    SnapshotRejected,
)
