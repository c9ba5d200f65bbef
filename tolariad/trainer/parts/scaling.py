"""The loss scale of an fp16 run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tolariad.trainer.parts.part import Part, Restoring, State

if TYPE_CHECKING:
    from tolariad.trainer.setup import Setup


class ScalingPart(Part):
    """The scaler. Its entry is None in other formats."""

    name = "scaling"

    def __init__(self, setup: Setup) -> None:
        self._scaling = setup.scaling

    def state(self) -> State:
        return State({"scaling": None if self._scaling is None else self._scaling.state()})

    def load(self, held: Restoring) -> None:
        state = held.entry("scaling")
        if self._scaling is not None and state is not None:
            self._scaling.load(state)
