"""Seeds: the slots of a model, the moves of a seed from stage to stage, and its measurements.

A slot is a named place in the model; a seed is a module that grows in it, and has the slot's name. A move is a boundary
order: the journal holds it before it acts, and a re-run repeats it.

Promises: SeedMoved holds everything that a re-run or a restart needs to make the same move without a forward pass.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from tolariad.core.calc.bounds import COUNT_MAX, unit
from tolariad.core.calc.seeds.gates import SeedMeasure
from tolariad.core.calc.seeds.stages import Learning, Stage
from tolariad.core.calc.units import Epoch, Hex, Loss, Name, Step
from tolariad.core.messages.base import Event, Report
from tolariad.core.messages.boundary import (
    BoundaryOrder,
    BoundaryOrderAborted,
    BoundaryOrderActed,
    BoundaryOrderGiven,
    BoundaryOrderReport,
)
from tolariad.core.messages.control import Command

SeedParameters = Annotated[int, unit("parameters", 0, COUNT_MAX)]
Updates = Annotated[int, unit("optimizer updates", 0, COUNT_MAX)]


# -- orders ------------------------------------------------------------------------------------------------------------


class SeedGerminate(Command, frozen=True, kw_only=True):
    """Germinate a seed in `slot` at the next step boundary. `parameters` are the blueprint's own."""

    METHOD: ClassVar[str] = "SeedsGerminate"

    slot: Name
    blueprint: Name
    parameters: dict[str, float] = msgspec.field(default_factory=dict)


class SeedAdvance(Command, frozen=True, kw_only=True):
    """Move the seed in `slot` to its next stage at the next step boundary, if it passes the gate."""

    METHOD: ClassVar[str] = "SeedsAdvance"

    slot: Name


class SeedCull(Command, frozen=True, kw_only=True):
    """Remove the seed in `slot` at the next step boundary. The slot is embargoed, then it can germinate again."""

    METHOD: ClassVar[str] = "SeedsCull"

    slot: Name


class MoveSeed(BoundaryOrder, frozen=True, kw_only=True):
    """To the trainer: move the seed in `slot` to `stage`.

    `number`: which germination of the run the seed is, from 1. `blueprint` and `parameters` are given with GERMINATED,
    `blend_steps` (updates over which alpha rises) with BLENDING. `example` and `dtype`: shape of the slot's input,
    batch first, and its type. The trainer finds out both when the seed germinates. A re-run gets the recorded ones.
    `learning`: in the new stage. `warmup_steps`: over which the rate of a seed that germinates rises; None: it follows
    the host's curve, as in older versions.
    """

    slot: Name
    stage: Stage
    number: int = 0
    blueprint: Name = ""
    parameters: dict[str, float] = msgspec.field(default_factory=dict)
    blend_steps: Updates = 0
    example: tuple[int, ...] = ()
    dtype: Name = ""
    learning: Learning = Learning.TRAIN
    warmup_steps: Updates | None = None


# -- slots -------------------------------------------------------------------------------------------------------------


class SlotFound(msgspec.Struct, frozen=True):
    """A slot of the model. `layer_depth`: its place in the order of the model's modules, from 0."""

    name: Name
    layer_depth: int = 0


class SeedSlotsRegistered(Event, frozen=True, kw_only=True):
    """The slots of the model that the trainer built, in the order of its modules.

    Recorded if they differ from the known ones. `blueprints`: those that are built in, installed or
    configured.
    """

    slots: tuple[SlotFound, ...]
    blueprints: tuple[str, ...] = ()


# -- moves -------------------------------------------------------------------------------------------------------------


class SeedMoveOrdered(BoundaryOrderGiven, frozen=True, kw_only=True):
    """A move of a seed was ordered. It ends in exactly one of SeedMoved and SeedMoveAborted.

    `before`: the stage that the seed then had. Other fields as in SeedMoved.
    """

    KIND: ClassVar[type[BoundaryOrder]] = MoveSeed

    slot: str
    stage: Stage
    before: Stage = Stage.UNKNOWN
    number: int = 0
    blueprint: str = ""
    parameters: dict[str, float] = msgspec.field(default_factory=dict)
    blend_steps: Updates = 0
    learning: Learning = Learning.TRAIN
    warmup_steps: Updates | None = None
    id: str = ""

    @classmethod
    def accepts(cls) -> tuple[str, ...]:
        """Return the names of the orders that an event of this type accepts."""
        return SeedGerminate.__name__, SeedAdvance.__name__, SeedCull.__name__

    @property
    def accepted(self) -> str:
        """Return the name of the order that the event accepts."""
        germinate, advance, cull = self.accepts()
        return {Stage.GERMINATED: germinate, Stage.CULLED: cull}.get(self.stage, advance)


class SeedMoved(BoundaryOrderActed, frozen=True, kw_only=True):
    """A seed moved: update `applied_before_step` is the first one with the seed in `stage`.

    `germination`: which germination of the run it is, from 1. `before`: the stage before the move. `blueprint`,
    `parameters`, `example` and `dtype` are of a germination: with them the same module can be built again.
    `blend_steps`: updates over which alpha rises, with BLENDING. `parameters_added`: how many the model has more.
    `measure`: the measurements that the gate judged. `epochs`: how many had ended. `validation_loss`: of the last
    validation, with BLENDING. `by`, `reason`: who ordered the move, and why. `number` counts the boundary orders that
    acted, from 1. `source`: with GERMINATED, the BLAKE3 of the blueprint's file; "" of a built-in one. `learning`:
    whether the seed is updated in `stage`. `warmup_steps`, with GERMINATED: updates over which its rate rises; absent:
    the rate follows the host's curve.
    """

    KIND: ClassVar[type[BoundaryOrder]] = MoveSeed

    slot: str
    stage: Stage
    before: Stage
    germination: int
    applied_before_step: Step
    number: int
    blueprint: str = ""
    parameters: dict[str, float] = msgspec.field(default_factory=dict)
    blend_steps: Updates = 0
    example: tuple[int, ...] = ()
    dtype: str = ""
    parameters_added: SeedParameters = 0
    measure: SeedMeasure | None = None
    epochs: Epoch = 0
    validation_loss: Loss | None = None
    by: str = ""
    reason: str = ""
    source: str = ""
    learning: Learning = Learning.TRAIN
    warmup_steps: Updates | None = None

    @property
    def order(self) -> MoveSeed:
        """Return the order that a re-run must obey for the same seed, with its cause."""
        return MoveSeed.of(self, number=self.germination)


class SeedMoveAborted(BoundaryOrderAborted, frozen=True, kw_only=True):
    """An ordered move did not act: the seed did not pass the gate, or the move was no longer possible."""

    slot: str
    stage: Stage
    why: str


class SeedMovedReport(BoundaryOrderReport, frozen=True, kw_only=True):
    """The answer to a MoveSeed that acts. Fields as in SeedMoved."""

    example: tuple[int, ...] = ()
    dtype: Name = ""
    parameters_added: SeedParameters = 0
    measure: SeedMeasure | None = None
    source: Hex = ""


# -- measurements ------------------------------------------------------------------------------------------------------


class SeedsMeasured(Event, frozen=True, kw_only=True):
    """The measurements of every seed with a module, at the end of an epoch."""

    epoch: Epoch
    seeds: tuple[SeedMeasure, ...]


class SeedsMeasuredReport(Report, frozen=True, kw_only=True):
    """Fields as in SeedsMeasured. Sent immediately before the EpochReport, if any seed has a module."""

    epoch: Epoch
    seeds: tuple[SeedMeasure, ...]
