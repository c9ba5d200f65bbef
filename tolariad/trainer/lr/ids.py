"""Names of parameter groups: unique in a controller, and the same again after a rollback."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, count
from typing import NamedTuple


class IdsMark(NamedTuple):
    """The names that were taken, and how many groups had been added during training."""

    taken: frozenset[str]
    added: int


class GroupIds:
    """The names that are taken."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._added = 0

    def unique(self, stem: str) -> str:
        """Take `stem`, or the first of stem_2, stem_3, … that is free."""
        id_ = next(one for one in chain((stem,), map(f"{stem}_{{}}".format, count(2))) if one not in self._taken)
        self._taken.add(id_)
        return id_

    def of_added(self) -> str:
        """Take a name for a group that is added during training."""
        self._added += 1
        return self.unique(f"morpho_group_{self._added}")

    def release(self, ids: Iterable[str]) -> None:
        """These names are free again."""
        self._taken.difference_update(ids)

    def mark(self) -> IdsMark:
        """Return what `go_back` needs to continue from here."""
        return IdsMark(frozenset(self._taken), self._added)

    def go_back(self, mark: IdsMark) -> None:
        """Continue as at `mark`: groups that are added again get the same names again."""
        self._taken, self._added = set(mark.taken), mark.added
