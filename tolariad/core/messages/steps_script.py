"""The script of a re-run: the journal's records of the steps to run again, as sent to the trainer.

It is neither an event nor stored: every start makes it anew.
"""

from __future__ import annotations

import msgspec

from tolariad.core.calc.units import Digest64, Epoch, Loss, Rate, Step
from tolariad.core.messages.boundary_order import AnyBoundaryOrder
from tolariad.core.messages.steps import DigestMethod, StepSkipped


class ScriptStep(msgspec.Struct, frozen=True, array_like=True):
    """The journal's record of one step to run again. `data`: the digest of its batches; 0 if there is none."""

    step: Step
    loss: Loss
    grad_norm: float
    lr: Rate
    rates: int
    data: int = 0


class ScriptDigest(msgspec.Struct, frozen=True, array_like=True):
    """The journal's digests of the state after update `step`, as in ParametersDigested."""

    step: Step
    method: DigestMethod
    tensors: tuple[Digest64, ...]


class ScriptOrder(msgspec.Struct, frozen=True, array_like=True):
    """A boundary order that acted from update `before_step` on. `number` counts those that acted, from 1.

    `after_epoch`: the newest epoch whose end, with its plateaus, came before it; 0 if the script has none.
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
    """The steps to run again, with skipped batches, boundary orders, and changes of the model's shape.

    `validations`: the metrics of each epoch's validation. It is not run again; the metrics go to the task's hook.
    `within`: the metrics of each validation within an epoch, by the last step before it.
    """

    steps: tuple[ScriptStep, ...] = ()
    validations: dict[Epoch, dict[str, float]] = {}
    skips: tuple[StepSkipped, ...] = ()
    orders: tuple[ScriptOrder, ...] = ()
    changes: tuple[ScriptChange, ...] = ()
    within: dict[Step, dict[str, float]] = {}
    digests: tuple[ScriptDigest, ...] = ()
