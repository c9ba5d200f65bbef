"""Points: how the ranks of a group do the same at the same place of training. Nothing here waits or knows torch.

All ranks come to the same points in the same order, and number them alike. At a point each rank writes its line, and
rank 0 says what follows:

* In a step all ranks exchange their numbers, fold them in the order of the ranks, and come to one verdict. Before the
  update rank 0 passes the gate, and says `GO`; the others update after that word only.
* At a boundary, and wherever a trainer waits for the recorder, rank 0 says `OBEY` with the count of the orders that act
  there, as often as orders come, and at last `GO`. If nothing is pending at the gate, it says `GO_QUIETLY`: then the
  boundary after the update is no point, so a step costs one exchange.

The functions are generators that yield the rank whose line is awaited, or None for rank 0's word. The caller waits and
goes on. The test lets them run in random order.

Promises: no rank updates before rank 0 has passed the gate. An order acts at one point on all ranks. A rank is at most
one point ahead of another when it writes a line, so the lines of two points never share a slot.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias

from tolariad.channel.group_page import GroupPage, Line, Word

Lines: TypeAlias = tuple[Line, ...]
_NOTHING: Line = Line()


class Points:
    """The points of one rank. `limit`: how many orders of the group's list may be obeyed by now."""

    def __init__(self, page: GroupPage, rank: int) -> None:
        self._page, self._rank = page, rank
        self.point = self.limit = 0
        # Whether the boundary that comes next is no point.
        self._is_quiet = False
        self._last: Word | None = None

    def exchange(self, line: Line) -> Generator[int | None, None, Lines]:
        """Begin a point with the numbers of a step. Return those of all ranks."""
        self._begin(line)
        return (yield from self._all_lines())

    def arrive(self) -> None:
        """Begin a point without numbers."""
        self._begin(_NOTHING)

    def _begin(self, line: Line) -> None:
        self.point += 1
        self._is_quiet, self._last = False, None
        self._page.write_line(self._rank, self.point, line)

    def _all_lines(self) -> Generator[int | None, None, Lines]:
        lines: list[Line] = []
        for rank in range(self._page.ranks):
            while (line := self._page.line(rank, self.point)) is None:
                yield rank
            lines.append(line)
        return tuple(lines)

    def passes(self) -> bool:
        """Return whether this boundary is no point. The one after it is."""
        was_quiet, self._is_quiet = self._is_quiet, False
        return was_quiet


class LeaderPoints(Points):
    """Those of rank 0."""

    def __init__(self, page: GroupPage) -> None:
        super().__init__(page, 0)

    def obey(self, orders: int) -> None:
        """Let all obey so many orders at this point. Another word follows."""
        self.limit = orders
        self._page.write_word(self.point, Word.OBEY, orders)

    def go(self, *, quietly: bool = False) -> Generator[int | None, None, None]:
        """Let all leave this point, after they have come to it. Nothing is obeyed that was not allowed before."""
        # Who has come here has read the lines and the words of the point before: their slots are free.
        yield from self._all_lines()
        self._is_quiet = quietly
        self._page.write_word(self.point, Word.GO_QUIETLY if quietly else Word.GO, self.limit)


class FollowerPoints(Points):
    """Those of any other rank."""

    def hear(self) -> bool:
        """Take in the newest word of this point. Return whether it lets this rank leave."""
        found = self._page.word(self.point)
        if found is not None:
            self._last, self.limit = found[0], max(self.limit, found[1])
            self._is_quiet = self._last is Word.GO_QUIETLY
        return self.may_leave

    @property
    def may_leave(self) -> bool:
        """Whether rank 0 has said the last word of this point."""
        return self._last in (Word.GO, Word.GO_QUIETLY)

    def gate(self) -> Generator[int | None, None, None]:
        """Wait for the word that lets this rank leave."""
        while not self.hear():
            yield None
