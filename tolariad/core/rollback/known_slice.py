"""What was known of training at each place that a rollback may go to: the slice. `known_ask` fills it and gives it back.

Invariants: what is kept belongs to a checkpoint or snapshot that is open or may still be gone back to: CATALOGUE_MAX and
SLOTS_MAX of them at most, and two places beside them. It must not know: what any of the fields means.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from tolariad.core.rates.slice import Change
from tolariad.core.steps import words as steps


class KnownProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of `steps.Progress`."""

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


class KnownLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of `limits.Limits`."""

    best: float | None = None
    best_epoch: int = 0
    reached: steps.Limit | None = None


class KnownRates(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of `rates.Rates`: why each rate is what it is. The rates themselves lie in the checkpoint."""

    changes: dict[str, Change] = {}
    unjudged: bool = False


class KnownStability(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of `conservative.Stability`."""

    in_epoch: int = 0


class KnownInstability(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of `instability.Instability`: the averages that accuracy and step time are held against."""

    accuracy: float | None = None
    validations: int = 0
    fallen: int = 0
    step_s: float = 0.0
    sound_step: int = 0


class KnownSnapshots(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of `snapshots.Snapshots`."""

    unhealthy_step: int = 0


class Known(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was known at one place: after `step`, where batch `batch` of `epoch` had been taken."""

    step: int = 0
    epoch: int = 1
    batch: int = 0
    progress: KnownProgress = KnownProgress()
    limits: KnownLimits = KnownLimits()
    rates: KnownRates = KnownRates()
    stability: KnownStability = KnownStability()
    instability: KnownInstability = KnownInstability()
    snapshots: KnownSnapshots = KnownSnapshots()

    @property
    def place(self) -> tuple[int, int]:
        """Epoch and batch."""
        return self.epoch, self.batch


class Knowledge(msgspec.Struct, frozen=True):
    """Slice of RunState. `held`: by the name of the checkpoint or snapshot.

    A trainer that runs steps again may copy its state at a place that the fold has passed already: at the last batch of the
    newest epoch, or at the end of the best one. `last_batch` and `best_end` are what was known there.
    """

    held: dict[str, Known] = {}
    last_batch: Known | None = None
    best_end: Known | None = None


class HasKnown(Protocol):
    """A state with this slice."""

    @property
    def known(self) -> Knowledge:
        """Return what was known at each place."""
