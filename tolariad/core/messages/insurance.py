"""The autopilot: states that it keeps as a way back, comparisons of states, and what it decides.

A finding for a finite rise leads to StatePinned. When the rise was watched for a while, ComparisonBegun asks the
trainer to measure both states, and StatesCompared or ComparisonAborted ends it. Then the pin is released, or the run
goes back by a rollback like any other.
"""

import enum
from typing import ClassVar

import msgspec

from tolariad.core.calc.detection.comparison import Judgement, Losses
from tolariad.core.calc.detection.loud import Loud
from tolariad.core.calc.units import Batch, Epoch, Loss, Step
from tolariad.core.messages.base import Event, Report, TrainerEffect
from tolariad.core.messages.boundary import BoundaryOrder
from tolariad.core.messages.checkpoints import CheckpointRef


class PinRole(enum.Enum):
    """What a pinned state is: the one from before a rise, or in a trial the one that the branch which went on left."""

    BEFORE = "before"
    WENT_ON = "went_on"


class StatePinned(Event, frozen=True, kw_only=True):
    """Checkpoint `checkpoint`, of `step`, is kept as a way back, outside the quota, until it is released.

    `is_written`: it exists. Otherwise it is being written, from a snapshot in memory or from the present state.
    """

    checkpoint: str
    step: Step
    why: str
    role: PinRole = PinRole.BEFORE
    is_written: bool = True


class PinReleased(Event, frozen=True, kw_only=True):
    """Checkpoint `checkpoint` is one like any other again. `is_lost`: the run would still have needed it."""

    checkpoint: str
    why: str
    is_lost: bool = False


class ComparisonBegun(Event, frozen=True, kw_only=True):
    """The trainer is to compare the present state with `checkpoint` when it has trained up to this batch.

    `role`: the pin's role; with WENT_ON both branches of a trial are compared.
    """

    checkpoint: str
    epoch: Epoch
    batch: Batch
    why: str
    role: PinRole = PinRole.BEFORE


class StatesCompared(Event, frozen=True, kw_only=True):
    """The present state and `checkpoint` were compared: mean losses of the same batches, without training.

    `newest`: the losses of the newest training batches. `held`: the validation's. `begin`: the loss of the untrained
    network. `usual`: the usual loss when the pinned state was copied; 0: not known. `loud`: what the detector knew of
    loud batches. `judgement`: what the losses of a rise say. `went_on`: in a trial, the branch that went on is no
    worse.
    """

    checkpoint: str
    step: Step
    epoch: Epoch
    batch: Batch
    newest: Losses | None = None
    held: Losses | None = None
    begin: Loss = 0.0
    usual: Loss = 0.0
    loud: Loud = Loud()
    judgement: Judgement | None = None
    went_on: bool | None = None


class ComparisonAborted(Event, frozen=True, kw_only=True):
    """A comparison could not be made, or its pin is gone."""

    checkpoint: str
    why: str


class HeldOnTo(Event, frozen=True, kw_only=True):
    """The run goes on although a rise was not explained. Its pin stays until an operator goes back, or the run ends.

    `checkpoint`: the pin; "" if there is none.
    """

    why: str
    checkpoint: str = ""
    step: Step = 0


class RememberLoud(BoundaryOrder, frozen=True, kw_only=True):
    """To the trainer: let the detector know such loud batches, as before a rollback."""

    loud: Loud


class LearnAnew(BoundaryOrder, frozen=True, kw_only=True):
    """To the trainer: let the detector learn the level of the loss anew. `why`: what changed."""

    RECORD: ClassVar[tuple[str, ...]] = ("cause", "why")

    why: str = ""


class CompareStates(TrainerEffect, frozen=True, kw_only=True):
    """To the trainer: compare the present state with `checkpoint` after this batch.

    Measure held-out data, and the batches up to this one that were taken since the order came.
    """

    checkpoint: CheckpointRef
    epoch: Epoch
    batch: Batch


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What a trainer measured for a comparison. See StatesCompared."""

    newest: Losses | None = None
    held: Losses | None = None
    begin: Loss = 0.0
    usual: Loss = 0.0


class ComparedReport(Report, frozen=True, kw_only=True):
    """Both states are measured, or could not be: `refused` says why. The trainer stands at this place."""

    checkpoint: str
    step: Step
    epoch: Epoch
    batch: Batch
    measured: Measured = Measured()
    loud: Loud = Loud()
    refused: str = ""
