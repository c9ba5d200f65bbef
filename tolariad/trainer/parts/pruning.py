"""The masks in force, and the numbers that the newest of them set to 0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tolariad.storage import CheckpointUnfit
from tolariad.trainer.checkpoints.compared import differing_tensors
from tolariad.trainer.checkpoints.files import MASKS_FILE, STATE_FILE
from tolariad.trainer.parts.part import Part, Restoring, State
from tolariad.trainer.pruning.handler import PruneHandler
from tolariad.trainer.pruning.room import room_for_masks
from tolariad.trainer.pruning.units import PruningRefused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tolariad.trainer.checkpoints.loaded import Loaded
    from tolariad.trainer.checkpoints.snapshot import Snapshot
    from tolariad.trainer.parts.part import Orders, Trained
    from tolariad.trainer.setup import Setup


class PruningPart(Part):
    """The pruner."""

    name = "pruning"

    def __init__(self, setup: Setup) -> None:
        self._setup, self._pruner = setup, setup.pruner

    def state(self) -> State:
        pruner = self._pruner
        tree = {"pruning": pruner.state()} if pruner.masked else {}
        return State(tree, {MASKS_FILE: pruner.displaced} if pruner.displaced else {})

    def room(self, live: Snapshot) -> int:
        return room_for_masks(live, self._setup.settings.prune)

    def fit(self, loaded: Loaded) -> None:
        try:
            self._pruner.check(loaded.pruning)  # safety: masks-of-checkpoint-fit
        except PruningRefused as refused:
            raise CheckpointUnfit(STATE_FILE, f"its masks do not fit the model: {refused}") from refused

    def load(self, held: Restoring) -> None:
        self._pruner.load(held.loaded.pruning, held.loaded.displaced, held.position.step, held.copy)

    def differing(self, now: Loaded, held: Loaded) -> Iterator[str]:
        yield from differing_tensors("masks ", now.displaced, held.displaced)
        yield from super().differing(now, held)

    def mark(self) -> Any:
        return self._pruner.mark()

    def go_back(self, mark: Any) -> None:
        self._pruner.go_back(mark)

    def orders(self, trained: Trained) -> Orders:
        return PruneHandler(self._setup, trained).orders
