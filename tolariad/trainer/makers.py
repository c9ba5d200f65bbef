"""The parts of a trainer that differ if several processes train together (`tolariad/trainer/ranks/`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from tolariad.trainer.checkpoints.save import Saver
from tolariad.trainer.orders import Boundary, Link
from tolariad.trainer.step.several import StepperOfUpdates
from tolariad.trainer.step.stepper import Stepper

if TYPE_CHECKING:
    from collections.abc import Callable

    from tolariad.trainer.setup import Setup


class Makers(Protocol):
    """Makes the parts of one trainer."""

    @property
    def stepper(self) -> Callable[..., Stepper]:
        """Makes what makes the steps."""

    def link(self, end: Any) -> Link:
        """Make the parts over this end of the channel. Called first."""

    def boundary(self, link: Link, **more: Any) -> Boundary:
        """Return what obeys orders between two steps."""

    def saver(self, *given: Any, **more: Any) -> Saver:
        """Return what takes checkpoints."""


class Alone:
    """Those of a trainer that trains alone."""

    link = staticmethod(Link.over)
    boundary = staticmethod(Boundary)
    saver = staticmethod(Saver)

    def __init__(self, stepper: Callable[..., Stepper]) -> None:
        self.stepper = stepper


def stepper_of(setup: Setup) -> Callable[..., Stepper]:
    """Return what makes the steps of a task in one process."""
    if setup.settings.parallel.exact:
        from tolariad.trainer.ranks.leaf_steps import StepperOfLeaves

        return StepperOfLeaves
    return Stepper if setup.training_step is None else StepperOfUpdates
