"""Stages of a run: changes of its objective, its data or its model that somebody announces.

A change may make the loss jump, and nothing is wrong then. From an announced change on, the detector judges the run
anew. An announcement is a boundary order, whoever makes it: an operator, the user's loop, a hook, or the
configuration. So a re-run repeats it at its place, and a rollback to before it undoes it.
"""

from typing import ClassVar, Final

import msgspec

from tolariad.core.calc.units import Epoch, Name, Sentence, Step
from tolariad.core.messages.base import Report
from tolariad.core.messages.boundary import BoundaryOrder, Outcome
from tolariad.core.messages.control import Command

# Who announces: what an OrderActed names if no operator ordered it.
BY_PROGRAM: Final = "the training's code"
BY_CONFIGURATION: Final = "the configuration"


class AnnounceStage(Command, frozen=True, kw_only=True):
    """Announce a change that may make the loss jump, from the next step on. `text` says which.

    The detector then begins anew: it learns the loss's new level before it judges a rise.
    """

    METHOD: ClassVar[str] = "Stage"

    text: Sentence


class BeginStage(BoundaryOrder, frozen=True, kw_only=True):
    """To the trainer: a stage begins, so the detector begins anew. `why`: what changed."""

    ACCEPTS: ClassVar[tuple[str, ...]] = (AnnounceStage.__name__,)

    why: str


class StageBegan(Outcome, frozen=True, kw_only=True):
    """Of BeginStage. `epoch`: the one in which it begins; 0: not known."""

    epoch: Epoch = 0


class StageReport(Report, frozen=True, kw_only=True):
    """The training's code or the configuration announced a stage. It has begun: the detector began anew.

    Update `applied_before_step` is its first. `by`: who announced it.
    """

    why: Sentence
    applied_before_step: Step
    epoch: Epoch
    by: Name = BY_PROGRAM


class StageAt(msgspec.Struct, frozen=True, array_like=True):
    """A stage of the current line. `number`: its boundary order's. `before_step`: its first update.

    `epoch`: the epoch in which it began; 0: not known.
    """

    number: int
    before_step: Step
    epoch: Epoch
    why: str
