"""The participants of a rollback (`rollback.participants`): they go back before the training does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tolariad.trainer.checkpoints.compared import differing_values
from tolariad.trainer.checkpoints.tree import encode_tree
from tolariad.trainer.parts.part import Part, Restoring, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tolariad.trainer.checkpoints.loaded import Loaded
    from tolariad.trainer.setup import Setup


class ParticipantsPart(Part):
    """The participants. That they agree is asked in PREPARE."""

    name = "participants"

    def __init__(self, setup: Setup) -> None:
        self._participants = setup.participants

    def state(self) -> State:
        states = self._participants.states()
        return State({"participants": states} if states else {})

    def check_capturable(self) -> None:
        for name, state in self._participants.states().items():
            encode_tree(state, f"participant {name}")

    def load(self, held: Restoring) -> None:
        """Raises ParticipantRefused if one of them raises; at a start, the participant's own exception."""
        self._participants.restore(held.loaded.participants, held.device, held.limit_s, held.done)

    def differing(self, now: Loaded, held: Loaded) -> Iterator[str]:
        for name, stored in self._participants.known(held.participants).items():
            yield from differing_values(f"participant {name}", now.participants[name], stored)
