"""Checkpoints, and training from one: restoring, re-running the steps after it, and the result."""

import enum
from typing import Final

import msgspec

from tolariad.core.calc.pruning.phase import PruningPhase
from tolariad.core.calc.units import Batch, Bytes, Epoch, Hex, Seconds, Seq, Step
from tolariad.core.messages.base import DaemonEffect, Event, Report, TrainerEffect
from tolariad.core.messages.quarantine import Batches
from tolariad.core.messages.rates import Standing
from tolariad.core.messages.run import Parent
from tolariad.core.messages.stages import StageAt

# `CheckpointAborted.why` if the checkpoint ended with its trainer: it was ended, or died, or the daemon did.
TRAINER_ENDED: Final = "the trainer was ended"
TRAINER_DIED: Final = "the trainer died"
DAEMON_ENDED: Final = "the daemon ended"
WITH_TRAINER: Final = frozenset({TRAINER_ENDED, TRAINER_DIED, DAEMON_ENDED})


class CheckpointReason(enum.Enum):
    """Why a checkpoint was taken."""

    START = "start"
    EPOCH = "epoch"
    INTERVAL = "interval"
    ORDERED = "ordered"
    STOP = "stop"
    END = "end"
    BEST = "best"
    PIN = "pin"


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
    """A committed checkpoint as the trainer needs it: the folder's name and the hash that its manifest must have.

    With a `slot` it is a snapshot in memory, and `manifest` is the digest that its table must have.
    """

    id: str
    step: Step
    epoch: Epoch
    batch: Batch
    manifest: Hex
    slot: int | None = None


class CheckpointSpans(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How long the parts of a checkpoint took: copying, hashing and writing each. `write`: making the whole durable.

    `rest`: position, random state, data and the task's own. `held`: how long training waited for the copy. `throttled`:
    how long writing waited for its turn (`checkpoint.throttle_mb_s`); the parts contain it.
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
    """A checkpoint was ordered. It ends in exactly one of CheckpointCommitted and CheckpointAborted.

    `epoch_finished`: the newest epoch whose end was recorded before; the checkpoint itself may be of a state before
    that end. `orders`: how many boundary orders had acted before. `copy_of`: it is written from this snapshot;
    `script_seq`: the event at which the snapshot was begun then.
    """

    id: str
    reason: CheckpointReason
    branch: int = 0
    epoch_finished: int = 0
    orders: int = 0
    copy_of: str = ""
    script_seq: Seq = 0


class CheckpointCommitted(Event, frozen=True, kw_only=True):
    """Every file of the checkpoint is on disk, and its step was durable before it was captured.

    Training continues from it with batch `batch` + 1 of `epoch`. `best`: it is kept as the end of the best epoch so
    far. `orders`: how many of the boundary orders it contains; the others act again after it (absent: its trainer did
    not report it). `applied_cause` is no longer written: the manifest holds the causes of the orders, as keys.
    """

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
    """Enough healthy steps followed the checkpoint (`snapshots.watch_steps`): the run may go back to it by itself."""

    id: str


class CheckpointAborted(Event, frozen=True, kw_only=True):
    """The checkpoint was not made. Its unfinished files are removed. `needs`: see CheckpointFailedReport."""

    id: str
    why: str
    needs: int = 0


class CheckpointRejected(Event, frozen=True, kw_only=True):
    """A committed checkpoint failed its verification. The next older one is tried."""

    id: str
    file: str
    why: str


class CheckpointUnfit(Event, frozen=True, kw_only=True):
    """A committed checkpoint is intact, but has another shape than this trainer's model.

    It stays for a model that it fits. `context`: the hash of the execution context in which the task builds the model
    that it does not fit. No start in that context tries it again. Empty: the model had changed during training when it
    was to go back; that holds for this trainer only.
    """

    id: str
    file: str
    why: str
    incarnation: int
    context: Hex = ""


class CheckpointDeletionBegun(Event, frozen=True, kw_only=True):
    """The checkpoint is about to be removed and is never used again. `size`: the bytes that this will free.

    It ends in one of CheckpointDeleted and CheckpointDeletionAborted. `keeps_importance` is no longer
    written: importance lies beside the checkpoints.
    """

    id: str
    why: str
    size: Bytes
    keeps_importance: bool = False


class CheckpointDeleted(Event, frozen=True, kw_only=True):
    """The files of a checkpoint are removed. `freed`: the bytes that they occupied."""

    id: str
    freed: Bytes = 0


class CheckpointDeletionAborted(Event, frozen=True, kw_only=True):
    """A checkpoint could not be removed, or not completely. The removal is tried again."""

    id: str
    why: str


class StorageExhausted(Event, frozen=True, kw_only=True):
    """The checkpoints that must not be removed exceed the quota.

    They stay, and no pruning begins: it would need more space.
    """

    used: Bytes
    quota: Bytes


class StorageRelieved(Event, frozen=True, kw_only=True):
    """The checkpoints fit into the quota again: it is larger, or fewer must stay."""

    used: Bytes
    quota: Bytes


class TrainingStarted(Event, frozen=True, kw_only=True):
    """Training is ready to begin.

    Parameters, optimizer, random state and data position are the checkpoint's, or newly made. `rates_owed`: the target
    of a rollback still lies ahead; RatesRestored follows after the steps up to it are repeated.
    """

    incarnation: int
    step: Step
    checkpoint: str = ""
    rates_owed: bool = False


class TakeCheckpoint(TrainerEffect, frozen=True, kw_only=True):
    """To the trainer: at the next boundary, once its step is durable, capture checkpoint `id` of `branch`, write it.

    If another checkpoint is being written, it waits for that one. The manifest records `health`, and `promoted`: the
    newest promoted checkpoint, or empty. `pruning_phase`: Leyline's number. `pruned`: the share of the parameters that
    are masked or removed. `importance`: the newest importance file, relative to the run's folder, or empty. `snapshot`:
    write this snapshot instead of the present state.
    """

    id: str
    reason: CheckpointReason
    branch: int = 0
    health: HealthStatus = HealthStatus.UNKNOWN
    promoted: str = ""
    pruning_phase: PruningPhase = PruningPhase.DISABLED
    pruned: float = 0.0
    importance: str = ""
    snapshot: CheckpointRef | None = None


class AbortCheckpoints(TrainerEffect, frozen=True, kw_only=True):
    """To the trainer: give up waiting checkpoints, and any being written of a step after `beyond_step`."""

    beyond_step: Step
    why: str


class DeleteCheckpoint(DaemonEffect, frozen=True, kw_only=True):
    """To the daemon: remove the files of checkpoint `id`."""

    id: str


class NameNewest(DaemonEffect, frozen=True, kw_only=True):
    """To the daemon: let the link `checkpoints/latest` lead to checkpoint `id`."""

    id: str


class SweepCheckpoints(DaemonEffect, frozen=True, kw_only=True):
    """To the daemon: remove the files of all checkpoints up to number `highest` that are not committed."""

    committed: tuple[str, ...]
    highest: int


class TrainFrom(TrainerEffect, frozen=True, kw_only=True):
    """To the trainer: restore `checkpoint`, run the script again, and train on from there.

    `checkpoint` None: begin with the model as built, or with the weights of `parent`. `durable_step`: the last step in
    the journal. `epoch_started`, `epoch_validated`, `epoch_finished`: the highest epochs of which the journal holds
    that event, so that nothing is reported twice. The end of `epoch_to_keep` is reported again: it still needs a
    checkpoint. So does the validation within an epoch after `step_to_keep`. `last_step`: the step at which training
    ends, within an epoch or not; None: at the last epoch. `tokens_left`: training also ends at the step with the last
    one of so many tokens, counted from `durable_step`; None: they are not counted. `tell_rates`: send a
    RatesStandingReport after everything in the journal is repeated. `metrics`: the names of the steps' metrics so far.
    `stages`: those of the current line, also of the script. The script comes beside this message, as a memory file.
    """

    checkpoint: CheckpointRef | None
    epochs: int
    durable_step: Step
    epoch_started: int = 0
    epoch_validated: int = 0
    epoch_finished: int = 0
    epoch_to_keep: int = 0
    step_to_keep: Step = 0
    last_step: Step | None = None
    tokens_left: int | None = None
    parent: Parent | None = None
    quarantined: tuple[Batches, ...] = ()
    tell_rates: bool = False
    metrics: tuple[str, ...] = ()
    stages: tuple[StageAt, ...] = ()


class TrainingStartedReport(Report, frozen=True, kw_only=True):
    """The trainer is at `step` with everything restored. A re-run, if any, comes next."""

    step: Step
    checkpoint: str = ""
    rates: Standing | None = None


class CheckpointWrittenReport(Report, frozen=True, kw_only=True):
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


class CheckpointFailedReport(Report, frozen=True, kw_only=True):
    """Checkpoint `id` was given up and its files are removed; training goes on.

    `needs`: its bytes, if there was no space for them; otherwise 0.
    """

    id: str
    why: str
    needs: int = 0


class CheckpointUnusableReport(Report, frozen=True, kw_only=True):
    """The checkpoint of `TrainFrom` failed its verification, or is `unfit`: intact, but of another shape.

    Nothing of it has been copied into the model.
    """

    id: str
    file: str
    why: str
    unfit: bool = False
