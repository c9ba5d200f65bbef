"""The rates of the last steps. Rows are stored as they are; a snapshot object is made when one is read."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, overload

from tolariad.core.calc.learning_rate.schedule import LRSnapshot

HISTORY_STEPS_MAX: Final = 1000
# Epoch, step, group names, the rates that the step used, time (s).
HistoryRow = tuple[int, int, tuple[str, ...], tuple[float, ...], float]


class History(Sequence[LRSnapshot]):
    """The newest 1 000 steps, oldest first. `shapes(group)` returns its parameters' shapes, for the checksums."""

    def __init__(self, shapes: Callable[[str], Sequence[tuple[int, ...]]]) -> None:
        self._shapes = shapes
        self._rows: deque[HistoryRow] = deque(maxlen=HISTORY_STEPS_MAX)
        self.add: Callable[[HistoryRow], None] = self._rows.append

    def __len__(self) -> int:
        """Return how many steps are kept."""
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> LRSnapshot: ...
    @overload
    def __getitem__(self, index: slice) -> list[LRSnapshot]: ...
    def __getitem__(self, index: int | slice) -> LRSnapshot | list[LRSnapshot]:
        """Return the snapshot of a step; the newest is at -1."""
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        epoch, step, names, rates, time_s = self._rows[index]
        lrs = dict(zip(names, rates, strict=True))
        return LRSnapshot(
            epoch=epoch,
            step=step,
            group_lrs=lrs,
            checksums={name: self._fingerprint(name, rate) for name, rate in lrs.items()},
            timestamp=time_s,
        )

    def _fingerprint(self, id_: str, rate: float) -> str:
        """Return a checksum of a group's id, its parameters' shapes and its rate (not of the parameters' values)."""
        text = f"{id_}|{';'.join(map(str, self._shapes(id_)))}|{rate.hex()}"
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
