"""Quarantine: what is not to be used again, by an operator's order or after something went wrong with it.

It must not know: how batches are fed, or how a target is chosen.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from tolariad.core.base import Batch, Effect, Epoch, Event
from tolariad.core.bounds import Name
from tolariad.core.control.words import Command


class Batches(msgspec.Struct, frozen=True, array_like=True):
    """Batches `first` to `last` of one epoch, counted from 1, both meant."""

    epoch: Epoch
    first: Batch
    last: Batch


class QuarantineAdd(Command, frozen=True, kw_only=True):
    """Put batches, a checkpoint or a seed into quarantine, one of the three; `until` the end of an epoch, else for ever.

    Batches are passed over without a forward pass from now on; a checkpoint is never gone back to; a seed is culled and not
    germinated again.
    """

    batches: Batches | None = None
    checkpoint: Name = ""
    seed: Name = ""
    until: Epoch | None = None


class QuarantineRemove(Command, frozen=True, kw_only=True):
    """Take the entry `name` out again."""

    name: Name


class QuarantineAdded(Event, frozen=True, kw_only=True):
    """From now on these batches are passed over wherever they come, this checkpoint is never a target, or this seed is culled
    and not germinated again.

    `until`: it is taken out again when that epoch has ended. `deaths`: the trainer died of it so often in a row, and its deaths
    are counted anew from here.
    """

    EMITTED_BY: ClassVar[str] = "control"
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
    """What `name` stood for may be used again."""

    EMITTED_BY: ClassVar[str] = "control"
    ORDER: ClassVar[str] = "QuarantineRemove"

    name: str
    id: str = ""


class SetQuarantine(Effect, frozen=True, kw_only=True):
    """To the trainer: these batches, and no others, are passed over from the next one on."""

    batches: tuple[Batches, ...]


EVENTS = (QuarantineAdded, QuarantineRemoved)
