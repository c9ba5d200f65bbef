"""Seeds: the slots of a model, the moves of a seed from stage to stage, and its measurements.

A slot is a named place in the model; a seed is a module that grows in it, and has the slot's name. A move is a boundary
order: the journal holds it before it acts, and a re-run repeats it.

Promises: a MoveSeed that acts holds everything that a re-run or a restart needs to make the same move, without a
forward pass.
"""

from typing import Annotated, ClassVar

import msgspec

from tolariad.core.calc.bounds import COUNT_MAX, unit
from tolariad.core.calc.seeds.gates import SeedMeasure
from tolariad.core.calc.seeds.stages import Learning, Stage
from tolariad.core.calc.units import Epoch, Hex, Loss, Name
from tolariad.core.messages.base import Event, Report
from tolariad.core.messages.boundary import BoundaryOrder, BoundaryOrderReport, Outcome
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

    `number`: the seed's number among the run's germinations, from 1. `blueprint` and `parameters` are given with
    GERMINATED, `blend_steps` (updates over which alpha rises) with BLENDING. `example` and `dtype`: shape of the slot's
    input, batch first, and its type. The trainer finds out both when the seed germinates. A re-run gets the recorded
    ones. `learning`: whether the seed is updated in the new stage. `warmup_steps`: how many updates the rate of a seed
    that germinates rises for; None: it follows the host's curve. `before`: the stage that the seed has then. `errors`:
    how many standard errors of the validation its effect must exceed; 0: that is not measured.
    """

    ACCEPTS: ClassVar[tuple[str, ...]] = (SeedGerminate.__name__, SeedAdvance.__name__, SeedCull.__name__)
    RECORD: ClassVar[tuple[str, ...]] = ("cause", "before", "errors")

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
    before: Stage = Stage.UNKNOWN
    errors: float = 0.0

    @property
    def accepted(self) -> str:
        """Return the name of the command that the order accepts."""
        germinate, advance, cull = self.ACCEPTS
        return {Stage.GERMINATED: germinate, Stage.CULLED: cull}.get(self.stage, advance)


class SeedMove(Outcome, frozen=True, kw_only=True):
    """Of MoveSeed. `parameters_added`: how many the model has more. `measure`: the measurements that the gate judged.

    `epochs`: how many had ended. `validation_loss`: the last validation's loss, given with BLENDING. `source`: the
    BLAKE3 of the blueprint's file, given with GERMINATED; "" for a built-in one.
    """

    parameters_added: SeedParameters = 0
    measure: SeedMeasure | None = None
    epochs: Epoch = 0
    validation_loss: Loss | None = None
    source: str = ""


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


class SeedMovedReport(BoundaryOrderReport, frozen=True, kw_only=True):
    """The answer to a MoveSeed that acts. Fields as in MoveSeed and SeedMove."""

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
