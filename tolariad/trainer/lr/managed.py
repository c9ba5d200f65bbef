"""A registered optimizer: its groups, their rates for the coming steps, and its guard.

Promises: the rates of many steps are computed at once, and again when a group changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from tolariad.core.calc.learning_rate.curve import rates_digest
from tolariad.core.calc.learning_rate.group import Group, coming
from tolariad.core.calc.learning_rate.schedule import LRPolicy
from tolariad.trainer.lr.guard import Guard, Tell

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

STEPS_AT_ONCE: Final = 1024
_DIGESTS_AT_ONCE: Final = 64


class ManagedOptimizer:
    """One optimizer. `step` always means the last applied step; rates are written for the next one."""

    def __init__(self, optimizer: Optimizer, groups: Sequence[Group], step: int, tell: Tell, *, compares: bool) -> None:
        self.groups, self.names = tuple(groups), tuple(group.name for group in groups)
        self._tell = tell
        self._compares = compares
        self.guard = Guard(optimizer, list(self.names), tell, compares=compares, stepped=False)
        # `_rows`: the rates from update `_first` on. `_digests`: their digests, as far as computed. `_coming`: the rows
        # not yet used.
        self._rows: list[tuple[float, ...]] = []
        self._digests: list[int] = []
        self._first = 0
        self._coming: Iterator[tuple[float, ...]] = iter(())
        self._draw(step)

    def advance(self, step: int) -> tuple[float, ...]:
        """Write the rates of the next step and return those that step `step` used."""
        for row in self._coming:  # one of them: a loop is faster than `next`
            return self.guard.replace(row)
        self._fill(step)
        return self.guard.replace(next(self._coming, ()))

    def digest(self, step: int, row: tuple[float, ...]) -> int:
        """Return `rates_digest` of the row that update `step` used. The row may be that of several optimizers."""
        # Computed in blocks: a single computation at each step would run with cold CPU caches.
        rows, digests, index = self._rows, self._digests, step - self._first
        if not 0 <= index < len(rows) or rows[index] is not row:
            return rates_digest(row)
        while index >= len(digests):
            digests.extend(map(rates_digest, rows[len(digests) : len(digests) + _DIGESTS_AT_ONCE]))
        return digests[index]

    def replace_group(self, group: Group, step: int) -> None:
        """Replace the group of the same name, and compute the rates from the next step on again."""
        if group not in self.groups:
            self.groups = tuple(group if one.name == group.name else one for one in self.groups)
            self._draw(step)

    def load(self, groups: Sequence[Group], step: int) -> None:
        """Hold these groups, which the optimizer has, and continue after `step`."""
        self.groups, self.names = tuple(groups), tuple(group.name for group in groups)
        self._draw(step)

    def move(self, optimizer: Optimizer) -> None:
        """Move the groups to another optimizer, or to this one after its parameters were exchanged on purpose."""
        row = self.guard.row
        self._guard_anew(optimizer, self.names)
        self.guard.write(row)
        self._freeze()

    def regroup(self, groups: Sequence[Group], step: int) -> None:
        """Hold these groups: those that the optimizer has now, in their order."""
        self._guard_anew(self.guard.optimizer, [group.name for group in groups])
        self.load(groups, step)

    def _guard_anew(self, optimizer: Optimizer, names: Iterable[str]) -> None:
        before = self.guard
        before.release()
        self.guard = Guard(optimizer, list(names), self._tell, compares=self._compares, stepped=before.stepped)

    def add(self, group: Group, parameters: Iterable[Any], *, like: str, step: int) -> None:
        """Add a group with these parameters and the options of the group `like`."""
        options = self.guard.groups[self.names.index(like)]
        shared = {key: value for key, value in options.items() if key not in ("params", "param_names", "lr")}
        self.guard.add_group({**shared, "params": list(parameters), "lr": 0.0}, group.name)
        self.load((*self.groups, group), step)

    def remove(self, name: str, step: int) -> None:
        """Remove a group."""
        self.guard.remove_group(name)
        self.load([group for group in self.groups if group.name != name], step)

    def parameters_of(self, name: str) -> list[torch.Tensor]:
        """Return the parameters of a group; empty if it is not a group of this optimizer."""
        return list(self.guard.groups[self.names.index(name)]["params"]) if name in self.names else []

    def _draw(self, step: int) -> None:
        self._fill(step)
        self._freeze()
        self.guard.write(next(self._coming, ()))  # empty if no group is left

    def _freeze(self) -> None:
        frozen = [group.name for group in self.groups if group.policy is LRPolicy.FROZEN]
        self.guard.freeze([parameter for name in frozen for parameter in self.parameters_of(name)])

    def _fill(self, step: int) -> None:
        self._rows, self._digests, self._first = list(coming(self.groups, step + 1, STEPS_AT_ONCE)), [], step + 1
        self._coming = iter(self._rows)
