"""A registered optimizer: its groups, their rates for the steps to come, and its guard.

Promises: the rates of many steps are computed in one go, and anew when a group changes. It must not know: orders' rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from tolariad.core.learning_rate import Group, LRPolicy, coming, rates_digest
from tolariad.trainer.lr.guard import Guard, Tell

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

STEPS_AT_ONCE: Final = 1024
_DIGESTS_AT_ONCE: Final = 64


class ManagedOptimizer:
    """One optimizer. `step` everywhere is the last applied one; rates are written for the one after it."""

    def __init__(self, optimizer: Optimizer, groups: Sequence[Group], step: int, tell: Tell, *, compares: bool) -> None:
        self.groups = tuple(groups)
        self.names = tuple(group.name for group in groups)
        self._tell = tell
        self._compares = compares
        self.guard = Guard(optimizer, list(self.names), tell, compares=compares)
        # The rows from update `_first` on, as many of their digests as were asked for, and those of them that are still to come.
        self._rows: list[tuple[float, ...]] = []
        self._digests: list[int] = []
        self._first = 0
        self._coming: Iterator[tuple[float, ...]] = iter(())
        self._draw(step)

    def advance(self, step: int) -> tuple[float, ...]:
        """Step `step` was applied: the rates it used. Those of the next one are written."""
        row = next(self._coming, None)
        if row is None:
            self._fill(step)
            row = next(self._coming, ())
        guard = self.guard
        put, used, guard.row = guard.put, guard.row, row
        put(row)
        return used

    def digest(self, step: int, row: tuple[float, ...]) -> int:
        """`rates_digest` of the row that update `step` used, also of one that is not this optimizer's alone.

        Many are made in one go: a single one finds the caches cold.
        """
        rows, digests, index = self._rows, self._digests, step - self._first
        if not 0 <= index < len(rows) or rows[index] is not row:
            return rates_digest(row)
        while index >= len(digests):
            digests.extend(map(rates_digest, rows[len(digests) : len(digests) + _DIGESTS_AT_ONCE]))
        return digests[index]

    def replace_group(self, group: Group, step: int) -> None:
        """A group has changed: every rate from the next step on is drawn anew."""
        if group not in self.groups:
            self.groups = tuple(group if one.name == group.name else one for one in self.groups)
            self._draw(step)

    def load(self, groups: Sequence[Group], step: int) -> None:
        """The same groups, standing elsewhere."""
        self.groups = tuple(groups)
        self._draw(step)

    def move(self, optimizer: Optimizer) -> None:
        """The same groups in another optimizer, or in this one after its groups' parameters were exchanged on purpose."""
        row, stepped = self.guard.row, self.guard.stepped
        self.guard.release()
        self.guard = Guard(optimizer, list(self.names), self._tell, compares=self._compares)
        self.guard.stepped = stepped
        self.guard.write(row)
        self._freeze()

    def add(self, group: Group, parameters: Iterable[Any], *, like: str, step: int) -> None:
        """Add a group with these parameters; its options are those of the group `like`."""
        options = self.guard.groups[self.names.index(like)]
        shared = {key: value for key, value in options.items() if key not in ("params", "param_names", "lr")}
        self.guard.add_group({**shared, "params": list(parameters), "lr": 0.0}, group.name)
        self._changed((*self.groups, group), step)

    def remove(self, name: str, step: int) -> None:
        """Take a group out."""
        self.guard.remove_group(name)
        self._changed(tuple(group for group in self.groups if group.name != name), step)

    def parameters_of(self, name: str) -> list[torch.Tensor]:
        """The parameters of a group; none where it is not of this optimizer."""
        return list(self.guard.groups[self.names.index(name)]["params"]) if name in self.names else []

    def _changed(self, groups: tuple[Group, ...], step: int) -> None:
        self.groups = groups
        self.names = tuple(group.name for group in groups)
        self._draw(step)

    def _draw(self, step: int) -> None:
        self._fill(step)
        self._freeze()
        self.guard.write(next(self._coming, ()))  # none where no group is left

    def _freeze(self) -> None:
        frozen = [group.name for group in self.groups if group.policy is LRPolicy.FROZEN]
        self.guard.frozen = [parameter for name in frozen for parameter in self.parameters_of(name)]

    def _fill(self, step: int) -> None:
        self._rows, self._digests, self._first = list(coming(self.groups, step + 1, STEPS_AT_ONCE)), [], step + 1
        self._coming = iter(self._rows)
