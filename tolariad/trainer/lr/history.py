"""The rates of the last steps, kept as columns: a snapshot is made when it is asked for.

It must not know: optimizers, policies.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, overload

from tolariad.core.learning_rate import LRSnapshot

HISTORY_STEPS_MAX: Final = 1000
# The groups' names and their rates, in the same order.
Rates = dict[str, float]


class History(Sequence[LRSnapshot]):
    """The newest 1 000 steps, oldest first. `shapes` gives those of a group's parameters, for its checksums."""

    def __init__(self, shapes: Callable[[str], Sequence[tuple[int, ...]]]) -> None:
        self._shapes = shapes
        self._epochs: deque[int] = deque(maxlen=HISTORY_STEPS_MAX)
        self._steps: deque[int] = deque(maxlen=HISTORY_STEPS_MAX)
        self._times: deque[float] = deque(maxlen=HISTORY_STEPS_MAX)
        self._names: deque[Sequence[Sequence[str]]] = deque(maxlen=HISTORY_STEPS_MAX)
        self._rates: deque[Sequence[Sequence[float]]] = deque(maxlen=HISTORY_STEPS_MAX)

    def add(
        self, epoch: int, step: int, names: Sequence[Sequence[str]], rates: Sequence[Sequence[float]], time_s: float
    ) -> None:
        """The rates that step `step` used: of each optimizer the groups' names and their rates."""
        self._epochs.append(epoch)
        self._steps.append(step)
        self._names.append(names)
        self._rates.append(rates)
        self._times.append(time_s)

    def __len__(self) -> int:
        """How many steps are kept."""
        return len(self._steps)

    @overload
    def __getitem__(self, index: int) -> LRSnapshot: ...
    @overload
    def __getitem__(self, index: slice) -> list[LRSnapshot]: ...
    def __getitem__(self, index: int | slice) -> LRSnapshot | list[LRSnapshot]:
        """The snapshot of a step, newest at -1."""
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        lrs = {
            name: rate
            for names, rates in zip(self._names[index], self._rates[index], strict=True)
            for name, rate in zip(names, rates, strict=True)
        }
        return LRSnapshot(
            epoch=self._epochs[index],
            step=self._steps[index],
            group_lrs=lrs,
            checksums={name: self._fingerprint(name, rate) for name, rate in lrs.items()},
            timestamp=self._times[index],
        )

    def _fingerprint(self, id_: str, rate: float) -> str:
        """Of a group's id, its parameters' shapes and its rate; not of their values, which are the optimizer's business."""
        text = f"{id_}|{';'.join(map(str, self._shapes(id_)))}|{rate.hex()}"
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
