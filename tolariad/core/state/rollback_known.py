"""The values of training at each place that a rollback may go to: the slice. `rollback_restored` fills it and restores
from it.

Invariants: every entry belongs to a checkpoint or snapshot that is open or may be gone back to. There are at most
CATALOGUE_MAX and SNAPSHOT_SLOTS_MAX of them, and two further places. Equal values have equal bytes: a Struct here that
has a float with a default omits no defaults. msgspec compares a default by identity, and a capture gives back another
object.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from tolariad.core import messages as m
from tolariad.core.state.rates import RateChange
from tolariad.core.state.steps import Measured


class KnownProgress(msgspec.Struct, frozen=True):
    """The restored fields of `steps.Progress`."""

    loss: float | None = None
    grad_norm: float | None = None
    lr: float | None = None
    epoch_first_step: int = 1
    epoch_loss_sum: float = 0.0
    metrics: dict[str, float] = {}
    best_accuracy: float | None = None
    train_loss: float | None = None
    skip_epoch: int = 0
    skip_batch: int = 0
    measured: Measured | None = None
    tokens: int = 0


class KnownLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """The restored fields of `RunLimits`."""

    best: float | None = None
    best_epoch: int = 0
    reached: m.Limit | None = None


class KnownRates(msgspec.Struct, frozen=True, omit_defaults=True):
    """The restored fields of `rates.Rates`: why each rate is what it is. The rates themselves are in the checkpoint."""

    changes: dict[str, RateChange] = {}
    unjudged: bool = False


class KnownStability(msgspec.Struct, frozen=True, omit_defaults=True):
    """The restored field of `conservative.Stability`."""

    in_epoch: int = 0


class KnownInstability(msgspec.Struct, frozen=True):
    """The restored fields of `instability.Instability`: the averages that accuracy and step time are compared with."""

    accuracy: float | None = None
    validations: int = 0
    fallen: int = 0
    step_s: float = 0.0
    sound_step: int = 0


class KnownSnapshots(msgspec.Struct, frozen=True, omit_defaults=True):
    """The restored field of `snapshots.Snapshots`."""

    unhealthy_step: int = 0


class KnownStrategy(msgspec.Struct, frozen=True, omit_defaults=True):
    """The restored fields of `strategy.Strategy`: its state, and what happened in the target's epoch."""

    kept: bytes = b""
    answered_epoch: int = 0
    skipped: int = 0
    findings: int = 0
    ended_steps: int = 0
    ended_skipped: int = 0
    ended_findings: int = 0


class Known(msgspec.Struct, frozen=True, omit_defaults=True):
    """The values at one place: after `step`, when batch `batch` of `epoch` had been consumed."""

    step: int = 0
    epoch: int = 1
    batch: int = 0
    progress: KnownProgress = KnownProgress()
    limits: KnownLimits = KnownLimits()
    rates: KnownRates = KnownRates()
    stability: KnownStability = KnownStability()
    instability: KnownInstability = KnownInstability()
    snapshots: KnownSnapshots = KnownSnapshots()
    strategy: KnownStrategy = KnownStrategy()

    @property
    def place(self) -> tuple[int, int]:
        """Return epoch and batch."""
        return self.epoch, self.batch


class Knowledge(msgspec.Struct, frozen=True):
    """Slice of RunState. `held`: the values by the name of the checkpoint or snapshot.

    A trainer that runs steps again may copy its state at a place that the fold has already passed. Examples are the
    last batch of the newest epoch, and the end of the best one. `last_batch` and `best_end` hold the values of these
    two places, and `former_ends` those of former best epochs that a rollback may bring back, oldest first.
    """

    held: dict[str, Known] = {}
    last_batch: Known | None = None
    best_end: Known | None = None
    former_ends: tuple[Known, ...] = ()


class HasKnown(Protocol):
    """A state with this slice."""

    @property
    def known(self) -> Knowledge:
        """Return the values at each place."""
