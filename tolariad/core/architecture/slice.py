"""The architecture ledger as recorded in the journal: slice, apply table, and which changes a place contains.

Invariants: the ledger is of the current branch, oldest change first. A rollback removes the changes after its target.
At one place changes come before checkpoints, so the place alone tells which changes a checkpoint contains.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from tolariad.core.architecture import words as ar
from tolariad.core.base import ApplyTable, Cause
from tolariad.core.rollback import words as rollback

CHANGES_MAX: Final = 256


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change of the model's shape. `epoch_ended`: as in ArchitectureChanged."""

    name: str
    arguments: str
    applied_before_step: int
    epoch_ended: int = 0


class Architecture(msgspec.Struct, frozen=True):
    """Slice of RunState. `changes`: those in force, at most CHANGES_MAX."""

    changes: tuple[Change, ...] = ()


class HasArchitecture(Protocol):
    """A state with this slice."""

    @property
    def architecture(self) -> Architecture:
        """Return the architecture ledger."""


def is_held_at(applied_before_step: int, epoch_ended: int, step: int, epoch: int) -> bool:
    """Return whether a state after `step`, whose next batch is one of `epoch`, contains such a change."""
    made_after = applied_before_step - 1
    return made_after < step or (made_after == step and epoch_ended < epoch)


def _changed(s: Architecture, e: ar.ArchitectureChanged, _: Cause) -> Architecture:
    change = Change(e.name, e.arguments, e.applied_before_step, e.epoch_ended)
    return replace(s, changes=(*s.changes[: max(0, e.number - 1)], change)[:CHANGES_MAX])


def _rolled_back(s: Architecture, e: rollback.RolledBack, _: Cause) -> Architecture:
    held = (one for one in s.changes if is_held_at(one.applied_before_step, one.epoch_ended, e.step, e.epoch))
    return replace(s, changes=tuple(held)) if s.changes else s


APPLY: Final[ApplyTable] = {ar.ArchitectureChanged: _changed, rollback.RolledBack: _rolled_back}
