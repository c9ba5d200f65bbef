"""The states of the process-wide random generators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tolariad.trainer.checkpoints.random_states import fitted
from tolariad.trainer.data.randomness import rng_states, set_rng_states
from tolariad.trainer.parts.part import Part, Restoring, State

if TYPE_CHECKING:
    from tolariad.trainer.setup import Setup


class RandomPart(Part):
    """The generators. It is last in the list: to restore another part may draw."""

    name = "rng"

    def __init__(self, setup: Setup) -> None:
        self._device = setup.device

    def state(self) -> State:
        # Without a GPU the entry is absent: such checkpoints are the same as those of older versions.
        device = {"device": self._device.index or 0} if self._device.type == "cuda" else {}
        return State({"rng": {**rng_states(), **device}})

    def load(self, held: Restoring) -> None:
        set_rng_states(fitted(held.entry("rng"), self._device))
