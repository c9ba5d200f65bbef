"""Leyline inside the process: all messages as unions, and the codec of events.

Promises: decoding takes two steps (`type` and `skippable` first, then that type's own decoder). An event of a newer
version is therefore either skipped (if it says `skippable`) or named, never misread. Names and fields are only added; a
test compares them.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from tolariad.core.architecture import words as architecture
from tolariad.core.base import Actor, Cause, Effect, Event
from tolariad.core.boundary import words as boundary
from tolariad.core.boundary.order_words import AnyBoundaryOrder
from tolariad.core.checkpoints import words as checkpoints
from tolariad.core.control import words as control
from tolariad.core.health import budget_words as budgets
from tolariad.core.health import conservative_words as stability
from tolariad.core.health import detection_words as detection
from tolariad.core.health import emergency_words as emergency
from tolariad.core.health import quarantine_words as quarantine
from tolariad.core.rates import optimizer_words as optimizer
from tolariad.core.rates import words as learning_rate
from tolariad.core.rollback import words as rollback
from tolariad.core.run import disk_words as disk
from tolariad.core.run import words as run
from tolariad.core.snapshots import words as snapshots
from tolariad.core.steps import words as steps
from tolariad.core.trainer import words as trainer

EVENT_TYPES: Final[dict[str, type[Event]]] = {
    kind.__name__: kind
    for concern in (
        run,
        trainer,
        steps,
        checkpoints,
        control,
        learning_rate,
        stability,
        optimizer,
        rollback,
        emergency,
        disk,
        detection,
        quarantine,
        budgets,
        snapshots,
        architecture,
    )
    for kind in concern.EVENTS
}

TrainerEffect = (
    checkpoints.TrainFrom
    | checkpoints.TakeCheckpoint
    | checkpoints.AbortCheckpoints
    | steps.Continue
    | steps.EndTraining
    | control.Hold
    | control.Release
    | control.SetEnd
    | trainer.ExitTrainer
    | AnyBoundaryOrder
    | rollback.PrepareRollback
    | rollback.CommitRollback
    | rollback.AbortRollback
    | detection.GoOn
    | quarantine.SetQuarantine
    | budgets.SetMemoryPressure
    | snapshots.UseRing
    | snapshots.TakeSnapshot
)
DaemonEffect = (
    trainer.SpawnTrainer
    | trainer.KillTrainer
    | run.ExitDaemon
    | checkpoints.DeleteCheckpoint
    | checkpoints.SweepCheckpoints
    | snapshots.PrepareRing
    | snapshots.VerifySnapshot
)
# Every order is one; core/orders.py lists them.
AnyCommand: TypeAlias = control.Command
Report = (
    trainer.ReadyReport
    | trainer.SetupRefusedReport
    | trainer.ExceptionReport
    | steps.StepReport
    | steps.StepSkippedReport
    | steps.EpochStartedReport
    | steps.ValidationBegunReport
    | steps.ValidationReport
    | steps.EpochReport
    | steps.TrainingEndedReport
    | budgets.BudgetsReport
    | checkpoints.TrainingStartedReport
    | checkpoints.RerunReport
    | rollback.StateCopiedReport
    | checkpoints.CheckpointWrittenReport
    | checkpoints.CheckpointFailedReport
    | checkpoints.CheckpointUnusableReport
    | control.HeldReport
    | boundary.BoundaryOrderReport
    | learning_rate.RatesStandingReport
    | learning_rate.RateViolationReport
    | learning_rate.AuditReport
    | rollback.RollbackHeardReport
    | learning_rate.RateGroupsReport
    | optimizer.RebuildReport
    | architecture.ArchitectureReport
    | rollback.RollbackPreparedReport
    | rollback.RollbackRefusedReport
    | rollback.RolledBackReport
    | detection.InstabilityReport
    | snapshots.SnapshotSizeReport
    | snapshots.SnapshotTakenReport
    | snapshots.SnapshotFailedReport
)


def kinds_of(base: type[Event]) -> tuple[type[Event], ...]:
    """Return the event types that are derived from `base`."""
    return tuple(kind for kind in EVENT_TYPES.values() if issubclass(kind, base))


class Unknown(msgspec.Struct, frozen=True):
    """An event of a type that this version does not know."""

    type: str
    skippable: bool


class _Kind(msgspec.Struct, frozen=True):
    """The two fields that decide how the rest is read."""

    type: str
    skippable: bool = False


_kind = msgspec.msgpack.Decoder(_Kind)
_decoders: Final[dict[str, msgspec.msgpack.Decoder[Event]]] = {
    name: msgspec.msgpack.Decoder(kind) for name, kind in EVENT_TYPES.items()
}
_encoder = msgspec.msgpack.Encoder(order="deterministic")


def encode_event(event: Event) -> bytes:
    """Return the event as one msgpack map, the form in which it is journaled."""
    return _encoder.encode(event)


def decode_event(raw: bytes | msgspec.Raw) -> Event | Unknown:
    """Read one journaled event. Raises msgspec.ValidationError if a known type has an impossible field."""
    kind = _kind.decode(raw)
    decoder = _decoders.get(kind.type)
    return Unknown(kind.type, kind.skippable) if decoder is None else decoder.decode(raw)


__all__ = [
    "EVENT_TYPES",
    "Actor",
    "AnyCommand",
    "Cause",
    "DaemonEffect",
    "Effect",
    "Event",
    "Report",
    "TrainerEffect",
    "Unknown",
    "decode_event",
    "encode_event",
    "kinds_of",
]
