"""The moving average of the parameters. It follows every update."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tolariad.storage.manifest import OF_AVERAGE
from tolariad.trainer.checkpoints.compared import differing_tensors
from tolariad.trainer.checkpoints.files import AVERAGE_FILE
from tolariad.trainer.parts.model import check_tensors
from tolariad.trainer.parts.part import Part, Restoring, State
from tolariad.trainer.parts.seeds import by_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tolariad.trainer.checkpoints.loaded import Loaded
    from tolariad.trainer.optim.average import Average
    from tolariad.trainer.setup import Setup


class AveragePart(Part):
    """The average, in a run that keeps one."""

    name = "average"

    def __init__(self, setup: Setup, average: Average) -> None:
        self._average, self._garden = average, setup.garden
        self.after_update = average.update

    @property
    def span(self) -> str:
        return "model"

    def state(self) -> State:
        return State(tensors=by_file(self._average.tensors, AVERAGE_FILE, OF_AVERAGE, self._garden))

    def fit(self, loaded: Loaded) -> None:
        if loaded.average is not None:
            check_tensors(AVERAGE_FILE, self._average.tensors, loaded.average)

    def load(self, held: Restoring) -> None:
        if held.loaded.average is not None:
            self._average.load(held.loaded.average)
        else:
            # The checkpoint has no average: start at its weights.
            self._average.begin_anew()

    def differing(self, now: Loaded, held: Loaded) -> Iterator[str]:
        if now.average is not None and held.average is not None:
            yield from differing_tensors("average ", now.average, held.average)
