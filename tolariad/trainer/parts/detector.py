"""What the detector has learnt of losses and gradient norms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tolariad.trainer.parts.part import Part, Restoring, State

if TYPE_CHECKING:
    from tolariad.trainer.setup import Setup


class DetectorPart(Part):
    """The monitor's detector."""

    name = "detector"

    def __init__(self, setup: Setup) -> None:
        self._watch = setup.watch

    def state(self) -> State:
        return State({"detector": self._watch.state()})

    def load(self, held: Restoring) -> None:
        self._watch.load_state(held.entry("detector"))
