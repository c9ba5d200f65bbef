"""The place in the data, of data that have a state of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tolariad.trainer.parts.part import Part, Restoring, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tolariad.trainer.checkpoints.loaded import Loaded
    from tolariad.trainer.setup import Setup


class DataPart(Part):
    """The training data."""

    name = "data"

    def __init__(self, setup: Setup) -> None:
        self._train = setup.train

    def state(self) -> State:
        return State({"data": self._train.state()})

    def load(self, held: Restoring) -> None:
        self._train.load_state(held.entry("data"))

    def differing(self, now: Loaded, held: Loaded) -> Iterator[str]:
        """Compare nothing: what loads from disk may convert a state that an older version of it saved."""
        yield from ()
