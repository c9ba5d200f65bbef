"""The changes of the model's shape, from which a start builds the model that the state is of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tolariad.trainer.architecture.ledger import state_of
from tolariad.trainer.parts.part import Part, State

if TYPE_CHECKING:
    from tolariad.core import messages as m
    from tolariad.trainer.checkpoints.loaded import Loaded
    from tolariad.trainer.setup import Setup


class ArchitecturePart(Part):
    """The ledger. It is first in the list: the parts after it are compared in the shape that it gives the model."""

    name = "architecture"

    def __init__(self, setup: Setup) -> None:
        self._ledger = setup.ledger

    def state(self) -> State:
        changes = self._ledger.changes
        return State({"architecture": state_of(changes)} if changes else {})

    def fit(self, loaded: Loaded) -> None:
        """Raises SetupRefused if the task cannot repeat a change; then the model has the shape that it had."""
        self._ledger.move_to(loaded.changes)

    def mark(self) -> tuple[m.ScriptChange, ...]:
        return self._ledger.changes

    def go_back(self, mark: tuple[m.ScriptChange, ...]) -> None:
        self._ledger.move_to(mark)
