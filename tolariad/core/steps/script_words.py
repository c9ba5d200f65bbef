"""The script of a re-run: what the journal holds of the steps that are made again, as it travels to the trainer.

It is neither an event nor kept: it is cut anew for every start. It must not know: how it is cut, or how it is followed.
"""

from __future__ import annotations

import msgspec

from tolariad.core.base import Batch, Epoch, Loss, Rate, Step
from tolariad.core.boundary.order_words import AnyBoundaryOrder
from tolariad.core.steps.words import SkipReason


class ScriptStep(msgspec.Struct, frozen=True, array_like=True):
    """What the journal says of one step that is run again."""

    step: Step
    loss: Loss
    grad_norm: float
    lr: Rate
    rates: int


class ScriptSkip(msgspec.Struct, frozen=True, array_like=True):
    """What the journal says of batches that led to no update; it comes before step `step`."""

    step: Step
    epoch: Epoch
    batch: Batch
    loss: Loss
    grad_norm: float
    reason: SkipReason


class ScriptValidation(msgspec.Struct, frozen=True, array_like=True):
    """A validation of the journal: it is not run again, its metrics go to the task's hook."""

    epoch: Epoch
    metrics: dict[str, float]


class ScriptOrder(msgspec.Struct, frozen=True, array_like=True):
    """A boundary order that acted from update `before_step` on; `number` counts those that acted, from 1.

    `after_epoch`: the newest epoch whose end came before it, and so did its plateaus; 0 if the script has none.
    """

    before_step: Step
    after_epoch: Epoch
    number: int
    order: AnyBoundaryOrder


class ScriptChange(msgspec.Struct, frozen=True, array_like=True):
    """A change of the model's shape, as in ArchitectureChanged."""

    number: int
    name: str
    arguments: str
    before_step: Step
    epoch_ended: Epoch


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """The steps to run again, in order, the validations among them, what was skipped, the boundary orders that acted, and the
    changes of the model's shape.
    """

    steps: tuple[ScriptStep, ...] = ()
    validations: tuple[ScriptValidation, ...] = ()
    skips: tuple[ScriptSkip, ...] = ()
    orders: tuple[ScriptOrder, ...] = ()
    changes: tuple[ScriptChange, ...] = ()
