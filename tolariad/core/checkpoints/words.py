"""Checkpoints, and training from one: restoring, re-running the steps after it, and what came of it.

It must not know: what is in a checkpoint's files, nor where the run's folder lies.
"""

from __future__ import annotations

import enum
from typing import ClassVar

import msgspec

from tolariad.core.base import Batch, Bytes, Effect, Epoch, Event, Hex, Message, Seconds, Seq, Step
from tolariad.core.health.quarantine_words import Batches
from tolariad.core.rates.words import Standing
from tolariad.core.run.words import Parent


class CheckpointReason(enum.Enum):
    """Why a checkpoint was taken."""

    START = "start"
    EPOCH = "epoch"
    INTERVAL = "interval"
    ORDERED = "ordered"
    STOP = "stop"
    END = "end"
    BEST = "best"


class HealthStatus(enum.IntEnum):
    """How well the run was when a checkpoint was ordered. The numbers are Leyline's."""

    UNKNOWN = 0
    HEALTHY = 1
    DEGRADED = 2
    UNHEALTHY = 3
    CRITICAL = 4


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a checkpoint; `name` is relative to its folder."""

    name: str
    size: Bytes
    blake3: Hex


class CheckpointRef(msgspec.Struct, frozen=True, kw_only=True):
    """A committed checkpoint as the trainer needs it: the folder's name and the hash its manifest must have.

    With a `slot` it is a snapshot in memory, and `manifest` the digest its table must have.
    """

    id: str
    step: Step
    epoch: Epoch
    batch: Batch
    manifest: Hex
    slot: int | None = None


class CheckpointSpans(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the parts of a checkpoint took: copying, hashing and writing each; `write` is what made the whole durable.

    `rest` is the position, random state, data and the task's own; `held` is how long training stood for the copy, and
    `throttled`, contained in the parts, how long writing waited for its turn (`checkpoint.throttle_mb_s`).
    """

    model: Seconds = 0.0
    optimizer: Seconds = 0.0
    strategy: Seconds = 0.0
    seeds: Seconds = 0.0
    rest: Seconds = 0.0
    write: Seconds = 0.0
    held: Seconds = 0.0
    throttled: Seconds = 0.0


class CheckpointBegun(Event, frozen=True, kw_only=True):
    """A checkpoint was ordered; it ends in exactly one of CheckpointCommitted and CheckpointAborted.

    `epoch_finished`: the newest epoch whose end was recorded before; the checkpoint itself may stand before that end.
    `orders`: how many boundary orders had acted before.
    """

    id: str
    reason: CheckpointReason
    branch: int = 0
    epoch_finished: int = 0
    orders: int = 0


class CheckpointCommitted(Event, frozen=True, kw_only=True):
    """Every file of the checkpoint is on disk and its step was durable before it was captured.

    The next thing after the capture is batch `batch` + 1 of `epoch`. `best`: it is kept as the end of the best epoch so far.
    `orders`: of the boundary orders that acted, it holds so many; the others act again after it (absent if its trainer did
    not say). `applied_cause` is not written any more: the manifest holds the causes of the orders, as keys.
    """

    EMITTED_BY: ClassVar[str] = "trainer"

    id: str
    step: Step
    epoch: Epoch
    batch: Batch
    manifest: Hex
    pieces: tuple[Piece, ...]
    size: Bytes
    seconds: Seconds
    applied_cause: Seq = 0
    branch: int = 0
    environment: Hex = ""
    best: bool = False
    merkle_root: Hex = ""
    spans: CheckpointSpans = CheckpointSpans()
    orders: int | None = None


class CheckpointPromoted(Event, frozen=True, kw_only=True):
    """Enough healthy steps came after it (`snapshots.watch_steps`): a rollback by the run itself may go back to it."""

    id: str


class CheckpointAborted(Event, frozen=True, kw_only=True):
    """The checkpoint does not exist; what was written of it is removed."""

    id: str
    why: str


class CheckpointRejected(Event, frozen=True, kw_only=True):
    """A committed checkpoint failed its verification; the next older one is tried."""

    EMITTED_BY: ClassVar[str] = "trainer"

    id: str
    file: str
    why: str


class CheckpointUnfit(Event, frozen=True, kw_only=True):
    """A committed checkpoint is whole, and of another shape than this trainer's model; it stays for one that it fits.

    `context`: the hash of the execution context whose model it does not fit as that is built: no start in the same one tries
    it again. Empty where a model that had changed while it trained was to go back to it: that is over with this trainer.
    """

    EMITTED_BY: ClassVar[str] = "trainer"

    id: str
    file: str
    why: str
    incarnation: int
    context: Hex = ""


class CheckpointDeletionBegun(Event, frozen=True, kw_only=True):
    """The checkpoint is about to be removed and is never used again; the bytes that will be free.

    It ends in one of CheckpointDeleted and CheckpointDeletionAborted. `keeps_importance`: its importance statistics stay.
    """

    id: str
    why: str
    size: Bytes
    keeps_importance: bool = False


class CheckpointDeleted(Event, frozen=True, kw_only=True):
    """Its files are gone; `freed` bytes were really there."""

    EMITTED_BY: ClassVar[str] = "daemon"

    id: str
    freed: Bytes = 0


class CheckpointDeletionAborted(Event, frozen=True, kw_only=True):
    """It could not be removed, or not wholly; it is tried again."""

    EMITTED_BY: ClassVar[str] = "daemon"

    id: str
    why: str


class StorageExhausted(Event, frozen=True, kw_only=True):
    """The checkpoints that must not be removed take more than the quota: they stay, and no pruning, which would want more, begins."""

    used: Bytes
    quota: Bytes


class StorageRelieved(Event, frozen=True, kw_only=True):
    """They fit into the quota again: it is larger, or fewer must stay."""

    used: Bytes
    quota: Bytes


class TrainingStarted(Event, frozen=True, kw_only=True):
    """Parameters, optimizer, random state and data position stand where the checkpoint left them (or freshly made).

    `rates_owed`: a rollback's target lies ahead; RatesRestored follows when everything up to it was repeated.
    """

    EMITTED_BY: ClassVar[str] = "trainer"

    incarnation: int
    step: Step
    checkpoint: str = ""
    rates_owed: bool = False


class RerunBegun(Event, frozen=True, kw_only=True):
    """Steps `first` to `last`, durable already, are run again from the checkpoint to reach the state they led to."""

    first: Step
    last: Step
    checkpoint: str


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first thing that came out otherwise in a re-run. Values are shown as hexadecimal floats or integers."""

    step: Step
    field: str
    expected: str
    found: str
    count: int = 1


class RerunFinished(Event, frozen=True, kw_only=True):
    """The re-run reached the last durable step; `first_difference` is absent where every bit was the same.

    `last` is below `first` where only skipped steps, `skipped` of them, had to be repeated.
    """

    EMITTED_BY: ClassVar[str] = "trainer"

    first: Step
    last: Step
    compared: int
    first_difference: Difference | None = None
    skipped: int = 0


class RerunAborted(Event, frozen=True, kw_only=True):
    """The re-run did not reach its end; the next start begins it anew."""

    why: str


class RerunDiverged(Event, frozen=True, kw_only=True):
    """Under strict determinism and in an equal environment a step came out differently: the run stops."""

    difference: Difference


class TakeCheckpoint(Effect, frozen=True, kw_only=True):
    """To the trainer: at the next boundary, once its step is durable, capture checkpoint `id` of `branch`, then write it.

    One that comes while another is being written waits for it. The manifest records `health`.
    """

    id: str
    reason: CheckpointReason
    branch: int = 0
    health: HealthStatus = HealthStatus.UNKNOWN


class AbortCheckpoints(Effect, frozen=True, kw_only=True):
    """To the trainer: give up what was ordered, and what is being written of a step after `beyond_step`."""

    beyond_step: Step
    why: str


class DeleteCheckpoint(Effect, frozen=True, kw_only=True):
    """To the daemon: remove the files of checkpoint `id`, but for its importance statistics where they are kept."""

    id: str
    keeps_importance: bool = False


class SweepCheckpoints(Effect, frozen=True, kw_only=True):
    """To the daemon: of the checkpoints numbered up to `highest`, remove what is left of any that is not committed."""

    committed: tuple[str, ...]
    highest: int


class TrainFrom(Effect, frozen=True, kw_only=True):
    """To the trainer: restore `checkpoint` (None: stay as built, or take over the weights of `parent`), run the script again, go on from there by itself.

    `durable_step` is the last step the journal holds; `epoch_started`, `epoch_validated` and `epoch_finished` are the
    highest epochs of which the journal holds that event, so nothing is reported twice, but for the end of `epoch_to_keep`,
    of which a checkpoint is owed. Training ends at `last_step`, where there is one, within an epoch or not. `tell_rates`:
    a RatesStandingReport is wanted where everything that the journal holds was repeated. The script travels beside this
    message, as a memory file.
    """

    checkpoint: CheckpointRef | None
    epochs: int
    durable_step: Step
    epoch_started: int = 0
    epoch_validated: int = 0
    epoch_finished: int = 0
    epoch_to_keep: int = 0
    last_step: Step | None = None
    parent: Parent | None = None
    quarantined: tuple[Batches, ...] = ()
    tell_rates: bool = False


class TrainingStartedReport(Message, frozen=True, kw_only=True):
    """The trainer stands at `step` with everything restored; a re-run, if any, comes next."""

    step: Step
    checkpoint: str = ""
    rates: Standing | None = None


class RerunReport(Message, frozen=True, kw_only=True):
    """The script is at its end."""

    first: Step
    last: Step
    compared: int
    first_difference: Difference | None = None
    skipped: int = 0


class CheckpointWrittenReport(Message, frozen=True, kw_only=True):
    """All files are written, synced and renamed into place."""

    id: str
    step: Step
    epoch: Epoch
    batch: Batch
    manifest: Hex
    pieces: tuple[Piece, ...]
    seconds: Seconds
    merkle_root: Hex = ""
    spans: CheckpointSpans = CheckpointSpans()
    orders: int | None = None


class CheckpointFailedReport(Message, frozen=True, kw_only=True):
    """Nothing of checkpoint `id` remains; training goes on."""

    id: str
    why: str


class CheckpointUnusableReport(Message, frozen=True, kw_only=True):
    """The checkpoint of `TrainFrom` failed its verification, or is `unfit`: whole, and of another shape than the model.

    Nothing of it reached the model.
    """

    id: str
    file: str
    why: str
    unfit: bool = False


EVENTS = (
    CheckpointBegun,
    CheckpointCommitted,
    CheckpointPromoted,
    CheckpointAborted,
    CheckpointRejected,
    CheckpointUnfit,
    CheckpointDeletionBegun,
    CheckpointDeleted,
    CheckpointDeletionAborted,
    StorageExhausted,
    StorageRelieved,
    TrainingStarted,
    RerunBegun,
    RerunFinished,
    RerunAborted,
    RerunDiverged,
)
