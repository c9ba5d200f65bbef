"""Quarantine: batches, checkpoints and seeds that must not be used again, by an order or after they did harm."""

from typing import ClassVar

import msgspec

from tolariad.core.calc.units import Batch, Epoch, Name
from tolariad.core.messages.base import Event, TrainerEffect
from tolariad.core.messages.control import Command


class Batches(msgspec.Struct, frozen=True, array_like=True):
    """Batches `first` to `last` of one epoch, inclusive, counted from 1."""

    epoch: Epoch
    first: Batch
    last: Batch


class QuarantineAdd(Command, frozen=True, kw_only=True):
    """Put batches, a checkpoint or a seed into quarantine, until the end of epoch `until`, or for ever.

    Batches are skipped without a forward pass from now on. A checkpoint is never gone back to. A seed is culled and not
    germinated again.
    """

    batches: Batches | None = None
    checkpoint: Name = ""
    seed: Name = ""
    until: Epoch | None = None


class QuarantineRemove(Command, frozen=True, kw_only=True):
    """Remove the entry `name` from quarantine."""

    name: Name


class QuarantineAdded(Event, frozen=True, kw_only=True):
    """From now on these batches are skipped, this checkpoint is never a target, or this seed is culled and embargoed.

    `until`: the entry is removed at the end of that epoch. `deaths`: how many deaths in a row it is blamed for; the
    trainer's deaths are counted from 0 again.
    """

    ORDER: ClassVar[str] = "QuarantineAdd"

    name: str
    why: str
    batches: Batches | None = None
    checkpoint: str = ""
    id: str = ""
    until: Epoch | None = None
    seed: str = ""
    deaths: int = 0


class QuarantineRemoved(Event, frozen=True, kw_only=True):
    """The entry `name` was removed: what it named may be used again."""

    ORDER: ClassVar[str] = "QuarantineRemove"

    name: str
    id: str = ""


class SetQuarantine(TrainerEffect, frozen=True, kw_only=True):
    """To the trainer: skip these batches and no others, from the next batch on."""

    batches: tuple[Batches, ...]
