"""Rollbacks: orders, the events of the three phases, and the messages to and from the trainer.

A rollback is RollbackBegun, perhaps RollbackPrepared, perhaps RollbackEscalated and RollbackPrepared once more, then
exactly one of RolledBack and RollbackAborted. In the fast tier `checkpoint` is a snapshot's id. Every possible target
begins with StateCopied.
"""

import enum
from typing import ClassVar

import msgspec

from tolariad.core.calc.units import Batch, Epoch, Name, Seconds, Step
from tolariad.core.messages.base import Event, Report, TrainerEffect
from tolariad.core.messages.checkpoints import CheckpointRef
from tolariad.core.messages.control import Command
from tolariad.core.messages.rates import Standing
from tolariad.core.messages.trainer import CodeFile


class Tier(enum.Enum):
    """Where the state comes from: `fast` from a snapshot in memory, `full` from a checkpoint on disk."""

    FAST = "fast"
    FULL = "full"


class RollbackSpans(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How long the parts of a rollback took, in either tier.

    `load`: reading and verifying the target. `coordination`: the time after it, until all had agreed and that was
    durable. The other parts make up COMMIT; `rest` is the position, random state, data, rates and the task's own.
    """

    load: Seconds = 0.0
    model: Seconds = 0.0
    optimizer: Seconds = 0.0
    strategy: Seconds = 0.0
    seeds: Seconds = 0.0
    coordination: Seconds = 0.0
    rest: Seconds = 0.0


class RefusalPolicy(enum.Enum):
    """The reaction to a target that turns out to be unusable.

    STAY: give up, because the order named the target. OLDER: go to the next older one, under the same id. HALT: the
    same, and halt the run if none is left.
    """

    STAY = "stay"
    OLDER = "older"
    HALT = "halt"


class Rollback(Command, frozen=True, kw_only=True):
    """Go back to the checkpoint `to`, or to the newest at or before the end of `epoch`, or at or before `step`.

    If none of them is given: to the newest promoted one, or to the newest while none is promoted. The steps after it
    are abandoned, and stay in the journal.
    """

    ONE_OF: ClassVar[tuple[str, ...]] = ("epoch", "step", "to")

    to: Name = ""
    epoch: Epoch | None = None
    step: Step | None = None
    tier: Tier | None = None


class StateCopied(Event, frozen=True, kw_only=True):
    """The trainer copied the run's state for checkpoint or snapshot `id`. The copy is not written or verified yet.

    Training continues from the copy with batch `batch` + 1 of `epoch`. A rollback to `id` restores the state as it is
    known at this event. `code`: what of the program's code was loaded after training had begun, and is not known yet.
    """

    id: str
    step: Step
    epoch: Epoch
    batch: Batch
    code: tuple[CodeFile, ...] = ()


class RollbackRequested(Event, frozen=True, kw_only=True):
    """A rollback was ordered. RollbackBegun follows, at once or after a re-run.

    `step`, `epoch`, `batch`: the place of the checkpoint. `given_up`: how many steps the rollback abandons, as of now.
    """

    ORDER: ClassVar[str] = "Rollback"

    checkpoint: str
    tier: Tier = Tier.FULL
    id: str = ""
    step: Step = 0
    otherwise: RefusalPolicy = RefusalPolicy.STAY
    epoch: Epoch = 0
    batch: Batch = 0
    given_up: Step | None = None


class RollbackBegun(Event, frozen=True, kw_only=True):
    """A rollback began (PREPARE): no update begins from here on, and every participant is asked whether it can go back.

    `rate_factor`: the factor by which every rate is multiplied after training is at `checkpoint`.
    """

    rollback: str
    checkpoint: str
    tier: Tier
    from_step: Step
    from_branch: int
    to_step: Step
    why: str = ""
    rate_factor: float = 1.0
    otherwise: RefusalPolicy = RefusalPolicy.STAY


class RollbackHeard(Event, frozen=True, kw_only=True):
    """Training has stopped for the rollback: the step or validation under way is finished.

    The deadline counts from here.
    """

    rollback: str


class RollbackPrepared(Event, frozen=True, kw_only=True):
    """All participants that answered can go back.

    This is durable before COMMIT, so a start after a crash completes the rollback. `abstained`:
    participants that gave no answer in their share of the tier's limit.
    """

    rollback: str
    participants: tuple[str, ...]
    seconds: Seconds
    abstained: tuple[str, ...] = ()


class RollbackEscalated(Event, frozen=True, kw_only=True):
    """The target could not be used. The same rollback goes on by the full tier, to `checkpoint`, which is no newer."""

    rollback: str
    checkpoint: str
    to_step: Step
    why: str


class RolledBack(Event, frozen=True, kw_only=True):
    """The rollback is complete (CONFIRM): parameters, optimizer, random state and data position are the target's.

    Training continues on a new branch. Steps of branch `parent` after `step` are abandoned: never a target, never run
    again. `by_start`: no trainer lived, so the next one begins there. `orders`: how many of the boundary orders
    `checkpoint` contains (absent: not known). `from_step` and `why` are those of RollbackBegun. `late`: participants
    that had not put their state back in time. Until one has, checkpoints contain the target's state of it.
    """

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
    late: tuple[str, ...] = ()


class RollbackAborted(Event, frozen=True, kw_only=True):
    """The rollback was given up. Training goes on from where it was."""

    rollback: str
    why: str


class RatesBackedOff(Event, frozen=True, kw_only=True):
    """After a rollback by the detector, orders follow that multiply the rates of `groups` groups by `factor`."""

    factor: float
    groups: int


class PrepareRollback(TrainerEffect, frozen=True, kw_only=True):
    """To the trainer: stop, at the gate if necessary, verify `checkpoint` and report whether it can be restored.

    `tokens_left`: as in TrainFrom, counted from the step of `checkpoint`.
    """

    rollback: str
    checkpoint: CheckpointRef
    tier: Tier
    tokens_left: int | None = None


class CommitRollback(TrainerEffect, frozen=True, kw_only=True):
    """To the trainer: restore what was prepared."""

    rollback: str


class AbortRollback(TrainerEffect, frozen=True, kw_only=True):
    """To the trainer: continue from where it is."""

    rollback: str


class StateCopiedReport(Report, frozen=True, kw_only=True):
    """The state is copied for checkpoint or snapshot `id`. Reported before anything that comes after the copy.

    `code`: what of the program's code was loaded after training had begun.
    """

    id: str
    step: Step
    epoch: Epoch
    batch: Batch
    code: tuple[CodeFile, ...] = ()


class RollbackHeardReport(Report, frozen=True, kw_only=True):
    """The trainer has stopped training for the rollback."""

    rollback: str


class RollbackPreparedReport(Report, frozen=True, kw_only=True):
    """The trainer has stopped and holds the target's verified state. `participants` are ready to take it.

    `abstained`: those that gave no answer in time. `checkpoint`: the target, which the
    strategy may have refused meanwhile.
    """

    rollback: str
    participants: tuple[str, ...]
    seconds: Seconds
    abstained: tuple[str, ...] = ()
    checkpoint: str = ""


class RollbackRefusedReport(Report, frozen=True, kw_only=True):
    """The target cannot be used. `restored`: the live state was overwritten before that was known.

    `unfit`: the target is intact, but of another shape than the model. `participant`: the target is intact, but this
    participant cannot go back to it. `checkpoint`: the target, as in RollbackPreparedReport.
    """

    rollback: str
    file: str
    why: str
    restored: bool = False
    unfit: bool = False
    participant: str = ""
    checkpoint: str = ""


class RolledBackReport(Report, frozen=True, kw_only=True):
    """The state is restored and compared. Training is at `step` of the new branch, with the rates of the target."""

    rollback: str
    step: Step
    commit_s: Seconds
    confirm_s: Seconds
    rates: Standing | None = None
    spans: RollbackSpans = RollbackSpans()
    late: tuple[str, ...] = ()
