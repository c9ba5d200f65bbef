"""Rollbacks: orders, the three phases as they are recorded, and what the trainer is told and tells.

A rollback is RollbackBegun, perhaps RollbackPrepared, perhaps RollbackEscalated and RollbackPrepared once more, then exactly
one of RolledBack and RollbackAborted. `checkpoint` is a snapshot's id in the fast tier. What may be gone back to begins with
StateCopied. It must not know: tensors, files, how a target is chosen.
"""

from __future__ import annotations

import enum
from typing import ClassVar

import msgspec

from tolariad.core.base import Batch, Effect, Epoch, Event, Message, Seconds, Step
from tolariad.core.bounds import Name
from tolariad.core.checkpoints.words import CheckpointRef
from tolariad.core.control.words import Command
from tolariad.core.rates.words import Standing


class Tier(enum.Enum):
    """Where the state comes from: `fast` from a snapshot in memory, `full` from a checkpoint on disk."""

    FAST = "fast"
    FULL = "full"


class RollbackSpans(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the parts of a rollback took, in either tier.

    `load`: reading and verifying the target; `coordination`: from there until all had agreed and that was durable. The other
    parts make up COMMIT: `rest` is the position, random state, data, rates and the task's own.
    """

    load: Seconds = 0.0
    model: Seconds = 0.0
    optimizer: Seconds = 0.0
    strategy: Seconds = 0.0
    seeds: Seconds = 0.0
    coordination: Seconds = 0.0
    rest: Seconds = 0.0


class Otherwise(enum.Enum):
    """What is done where the target turns out to be of no use: it was named, and nothing stands for it; the next older one is
    gone back to, under the same id; or that, and where none is left the run halts.
    """

    STAY = "stay"
    OLDER = "older"
    HALT = "halt"


class Rollback(Command, frozen=True, kw_only=True):
    """Go back to the checkpoint `to`, or to the newest at or before the end of `epoch`, or at or before `step`.

    If none of them is given: to the newest promoted one, or to the newest while none is promoted. The steps after it are
    abandoned, and stay in the journal.
    """

    ONE_OF: ClassVar[tuple[str, ...]] = ("epoch", "step", "to")

    to: Name = ""
    epoch: Epoch | None = None
    step: Step | None = None
    tier: Tier | None = None


class StateCopied(Event, frozen=True, kw_only=True):
    """The trainer copied the run's state for checkpoint or snapshot `id`, which is not written, or not hashed, yet.

    The next thing after the copy is batch `batch` + 1 of `epoch`. What is known of training at this event is what a rollback
    to `id` restores.
    """

    EMITTED_BY: ClassVar[str] = "trainer"

    id: str
    step: Step
    epoch: Epoch
    batch: Batch


class RollbackRequested(Event, frozen=True, kw_only=True):
    """A rollback was ordered; RollbackBegun follows, at once or when a re-run is over."""

    EMITTED_BY: ClassVar[str] = "control"
    ORDER: ClassVar[str] = "Rollback"

    checkpoint: str
    tier: Tier = Tier.FULL
    id: str = ""
    step: Step = 0
    otherwise: Otherwise = Otherwise.STAY


class RollbackBegun(Event, frozen=True, kw_only=True):
    """PREPARE: no update begins from here on; every participant is asked whether it can go back to `checkpoint`.

    `rate_factor`: by what every rate is multiplied once training stands there.
    """

    rollback: str
    checkpoint: str
    tier: Tier
    from_step: Step
    from_branch: int
    to_step: Step
    why: str = ""
    rate_factor: float = 1.0
    otherwise: Otherwise = Otherwise.STAY


class RollbackHeard(Event, frozen=True, kw_only=True):
    """Training stands still for it: what it did before, a step or a validation, is over. The deadline counts from here."""

    EMITTED_BY: ClassVar[str] = "trainer"

    rollback: str


class RollbackPrepared(Event, frozen=True, kw_only=True):
    """All participants can: this is durable before COMMIT, so a start after a crash finishes what was begun."""

    EMITTED_BY: ClassVar[str] = "trainer"

    rollback: str
    participants: tuple[str, ...]
    seconds: Seconds


class RollbackEscalated(Event, frozen=True, kw_only=True):
    """Its target could not be used; the same rollback goes on by the full tier, to `checkpoint`, which is no newer."""

    rollback: str
    checkpoint: str
    to_step: Step
    why: str


class RolledBack(Event, frozen=True, kw_only=True):
    """CONFIRM: parameters, optimizer, random state and data position are those of `checkpoint`, on a new branch.

    Steps of `parent` behind `step` are abandoned: never a target, never run again. `by_start`: no trainer lived, so the
    next one begins there. `orders`: of the boundary orders that acted, `checkpoint` holds so many (absent: not known).
    `from_step` and `why` are those of RollbackBegun.
    """

    EMITTED_BY: ClassVar[str] = "trainer"

    rollback: str
    checkpoint: str
    branch: int
    parent: int
    step: Step
    epoch: Epoch
    batch: Batch
    commit_s: Seconds = 0.0
    confirm_s: Seconds = 0.0
    by_start: bool = False
    orders: int | None = None
    spans: RollbackSpans = RollbackSpans()
    from_step: Step = 0
    why: str = ""


class RollbackAborted(Event, frozen=True, kw_only=True):
    """Nothing was changed; training goes on where it stood."""

    rollback: str
    why: str


class RatesBackedOff(Event, frozen=True, kw_only=True):
    """Behind a rollback of the detector's: the orders that follow multiply the rates of so many groups by `factor`."""

    factor: float
    groups: int


class PrepareRollback(Effect, frozen=True, kw_only=True):
    """To the trainer: stand still, at the gate if need be, verify `checkpoint` and say whether it can be restored."""

    rollback: str
    checkpoint: CheckpointRef
    tier: Tier


class CommitRollback(Effect, frozen=True, kw_only=True):
    """To the trainer: restore what was prepared."""

    rollback: str


class AbortRollback(Effect, frozen=True, kw_only=True):
    """To the trainer: go on where it stood."""

    rollback: str


class StateCopiedReport(Message, frozen=True, kw_only=True):
    """The state is copied for checkpoint or snapshot `id`; reported before anything that comes after the copy."""

    id: str
    step: Step
    epoch: Epoch
    batch: Batch


class RollbackHeardReport(Message, frozen=True, kw_only=True):
    """The trainer has heard of it, and does nothing else from now on."""

    rollback: str


class RollbackPreparedReport(Message, frozen=True, kw_only=True):
    """The trainer stands still and holds the target's verified state; `participants` are ready to take it."""

    rollback: str
    participants: tuple[str, ...]
    seconds: Seconds


class RollbackRefusedReport(Message, frozen=True, kw_only=True):
    """A participant cannot go back to the target. `restored`: it was copied and then found to be another.

    `unfit`: the target is whole, and of another shape than the model.
    """

    rollback: str
    file: str
    why: str
    restored: bool = False
    unfit: bool = False


class RolledBackReport(Message, frozen=True, kw_only=True):
    """Restored and compared with what was prepared; training stands at `step` of the new branch, its rates with it."""

    rollback: str
    step: Step
    commit_s: Seconds
    confirm_s: Seconds
    rates: Standing | None = None
    spans: RollbackSpans = RollbackSpans()


EVENTS = (
    StateCopied,
    RollbackRequested,
    RollbackBegun,
    RollbackHeard,
    RollbackPrepared,
    RollbackEscalated,
    RolledBack,
    RollbackAborted,
    RatesBackedOff,
)
