"""Journal events as telemetry: which events are sent, and with which priority.

Steps are not sent. The journal holds them, and a thousand messages a second would push all others out of the queue.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from tolariad.core.checkpoints import words as ck
from tolariad.core.control import words as control
from tolariad.core.control.telemetry import TelemetryPriority
from tolariad.core.health import stability_words as stability
from tolariad.core.rollback import words as rb
from tolariad.core.run import disk_words as disk
from tolariad.core.run import words as run
from tolariad.core.steps import words as steps
from tolariad.core.trainer import words as trainer
from tolariad.core.vocabulary import Event
from tolariad.telemetry.collector import TelemetryCollector

_SOURCE: Final = "tolaria"
_NEVER: Final = (steps.StepCompleted, control.TelemetryDropped)
_PRIORITIES: Final[dict[type[Event], TelemetryPriority]] = {
    run.RunFrozen: TelemetryPriority.EMERGENCY,
    rb.EmergencyRaised: TelemetryPriority.EMERGENCY,
    run.RunFailed: TelemetryPriority.CRITICAL,
    ck.RerunDiverged: TelemetryPriority.CRITICAL,
    trainer.TrainerUnkillable: TelemetryPriority.CRITICAL,
    trainer.TrainerDied: TelemetryPriority.HIGH,
    trainer.TrainerHung: TelemetryPriority.HIGH,
    ck.CheckpointRejected: TelemetryPriority.HIGH,
    ck.CheckpointUnfit: TelemetryPriority.HIGH,
    ck.CheckpointAborted: TelemetryPriority.HIGH,
    ck.StorageExhausted: TelemetryPriority.HIGH,
    disk.DiskLow: TelemetryPriority.HIGH,
    rb.RollbackBegun: TelemetryPriority.HIGH,
    rb.RollbackEscalated: TelemetryPriority.HIGH,
    rb.RolledBack: TelemetryPriority.HIGH,
    rb.RollbackAborted: TelemetryPriority.HIGH,
    rb.EmergencyCleared: TelemetryPriority.HIGH,
    stability.ConservativeModeEntered: TelemetryPriority.HIGH,
    stability.ConservativeModeLeft: TelemetryPriority.HIGH,
    run.JournalRecovered: TelemetryPriority.HIGH,
    steps.EpochStarted: TelemetryPriority.LOW,
    steps.ValidationBegun: TelemetryPriority.LOW,
}


def offer_events(collector: TelemetryCollector, events: Iterable[tuple[int, Event]]) -> None:
    """Queue durable events as messages. The kernel's thread calls this, so it must return quickly."""
    for seq, event in events:
        if isinstance(event, _NEVER):
            continue
        priority = _PRIORITIES.get(type(event), TelemetryPriority.NORMAL)
        payload = {"seq": seq, **msgspec.structs.asdict(event)}
        collector.offer(priority, _SOURCE, type(event).__name__, payload, event.wall)
