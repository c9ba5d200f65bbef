"""The health of a run: the detector's findings and the question about them, emergencies, conservative mode."""

import enum
from typing import ClassVar, Final

from msgspec.structs import asdict

from tolariad.core.calc.detection.loud import Loud
from tolariad.core.calc.detection.rules import Finding, Signal, Verdict
from tolariad.core.calc.units import Batch, Epoch, Seconds, Step
from tolariad.core.messages.base import Event, Report, TrainerEffect
from tolariad.core.messages.control import Command
from tolariad.core.messages.quarantine import Batches
from tolariad.core.messages.rollback import RefusalPolicy, Tier


class Level(enum.Enum):
    """How serious an emergency is, in ascending order.

    Leyline's EmergencyLevel calls them NOTICE, ELEVATED, CONSERVATIVE and HALT, 1 to 4; messages to other subsystems
    use those names. Journal, socket and commands use these.
    """

    MINOR = "minor"
    MAJOR = "major"
    SEVERE = "severe"
    CRITICAL = "critical"


class Follows(enum.Enum):
    """The consequence of an emergency: nothing further, a rollback, or a halt of the run."""

    RECORD = "record"
    ROLLBACK = "rollback"
    HALT = "halt"


class RaiseEmergency(Command, frozen=True, kw_only=True):
    """Raise an emergency: minor is recorded, major and severe roll back, critical freezes the trainer at once.

    With `more` the outcome is that of its consequence: RolledBack, RollbackAborted, RunFrozen. If it is only recorded,
    the outcome is the event itself.
    """

    METHOD: ClassVar[str] = "Emergency"

    level: Level


class EmergencyRaised(Event, frozen=True, kw_only=True):
    """An emergency was raised. Its level falls only after a healthy epoch, or by an operator's order.

    `follows`: what is done about it (absent in journals of older versions). `checkpoint`: the target of its rollback.
    `otherwise`: what is done if that is unusable. `suspects`, `more_suspects`: the batches that are skipped after the
    rollback, of one epoch each.
    """

    ORDER: ClassVar[str] = "RaiseEmergency"

    level: Level
    why: str
    id: str = ""
    follows: Follows | None = None
    checkpoint: str = ""
    otherwise: RefusalPolicy = RefusalPolicy.HALT
    suspects: Batches | None = None
    more_suspects: tuple[Batches, ...] = ()


class EmergencyCleared(Event, frozen=True, kw_only=True):
    """The emergency is over: a healthy epoch has passed, or an operator took over."""

    why: str


class ConservativeModeEntered(Event, frozen=True, kw_only=True):
    """Conservative mode began: checkpoints are taken twice as often.

    It never changes a weight, a rate or the order of data. `soft_factor`: the limits of soft budgets of time are
    multiplied by it until the mode ends.
    """

    why: str
    soft_factor: float = 1.0


class ConservativeModeLeft(Event, frozen=True, kw_only=True):
    """Conservative mode ended: enough healthy epochs and time have passed, and no reason for it is left."""

    healthy_epochs: int
    seconds: Seconds


class InstabilityDetected(Event, frozen=True, kw_only=True):
    """The detector found something unusual: `value` exceeded `limit`; healthy steps had `baseline`.

    `step` is the update that was judged, before it was made; `batch` is its last batch. The events that follow name
    this one as their cause; without any, nothing was done. `run_of`: unhealthy steps in a row, with this one. `asks`:
    the trainer waits before the update for an answer. `level`: the level of the emergency that it causes. `explosion`:
    the loss above which the detector finds an explosion. `returns`: how often the run had gone back from this place
    before. `goes_on`: the finding called for a rollback, but rollbacks do not help here, so the update is made.
    `first_batch`: the first of the batches that the detector suspects; 0: none.

    `insured`: the autopilot answers it: a finite rise is watched before the run goes back. `began`: how many updates
    before it the rise began. `unit`: the declared unit of a loss that may have either sign; 0 for others. `loud`: what
    the detector knows of loud batches.
    """

    finding: Finding
    signal: Signal
    value: float
    baseline: float
    limit: float
    step: Step
    epoch: Epoch
    batch: Batch
    run_of: int = 1
    asks: bool = False
    level: Level | None = None
    explosion: float = 0.0
    returns: int = 0
    goes_on: bool = False
    first_batch: Batch = 0
    insured: bool = False
    began: Step = 0
    unit: float = 0.0
    loud: Loud = Loud()


class InstabilityReport(Report, frozen=True, kw_only=True):
    """The detector's verdict on update `step`, whose last batch is `batch`.

    The suspected batches begin at `first_batch`. The trainer waits for `GoOn` before the update. `late`: the update was
    already made, because its values were known late. `began`, `unit`, `loud`: see InstabilityDetected.
    """

    verdict: Verdict
    step: Step
    epoch: Epoch
    batch: Batch
    first_batch: Batch
    late: bool = False
    began: Step = 0
    unit: float = 0.0
    loud: Loud = Loud()


class GoOn(TrainerEffect, frozen=True, kw_only=True):
    """To the trainer: make update `step` in spite of the finding."""

    step: Step


def detected(verdict: Verdict, *, step: int, epoch: int, batch: int) -> InstabilityDetected:
    """Return the event that records a verdict."""
    return InstabilityDetected(**asdict(verdict), step=step, epoch=epoch, batch=batch)


_GRAVITY: Final = {level: number for number, level in enumerate(Level)}


def graver(level: Level | None, found: Level) -> Level:
    """Return the level after `found` is raised: a level never falls."""
    return found if level is None or _GRAVITY[found] > _GRAVITY[level] else level


def tier_of(level: Level) -> Tier | None:
    """Return the tier of the rollback for an emergency of this level; None if it leads to a record or a freeze."""
    return {Level.SEVERE: Tier.FAST, Level.MAJOR: Tier.FULL}.get(level)
