"""One rank's part in its group: it waits for lines and words, and notices when another rank is gone."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from tolariad.trainer.ranks.times import RankClock

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from tolariad.channel.group_page import GroupPage, Line
    from tolariad.channel.points import FollowerPoints, LeaderPoints, Lines
    from tolariad.channel.rank_ends import LeaderEnd

_Found = TypeVar("_Found")
# The longest sleep. A lost wake-up, and the end of another rank, are noticed after it.
_SLEEP_S: Final = 0.001


class RanksDiffer(RuntimeError):
    """Two ranks have different values of what must be equal: they train different models."""


class Leader:
    """Rank 0's part. `end` is its end of the channel, once there is a trainer."""

    end: LeaderEnd

    def __init__(self, page: GroupPage, points: LeaderPoints, check: Callable[[], None]) -> None:
        """`check` raises if another rank has ended."""
        self._page, self._points, self._check = page, points, check
        self.clock = RankClock(page)
        # Whether the others are at the present point until rank 0 lets them leave.
        self._is_open = False

    def attend(self, end: LeaderEnd) -> None:
        """Begin with a new trainer."""
        self.end = end
        end.attend(self.obey)

    def exchange(self, line: Line) -> Lines:
        """Give the numbers of this rank. Return those of all."""
        self._is_open = True
        return self._run(self._points.exchange(line))

    @contextmanager
    def point(self) -> Iterator[None]:
        """In the block all ranks obey the orders that come. At its end they leave together."""
        self._points.arrive()
        self._is_open = True
        self.end.collect()
        self.obey()
        yield
        self.leave()

    def leave(self, *, quietly: bool = False) -> None:
        """Let all ranks leave the present point. `quietly`: the boundary that comes next is no point."""
        self._is_open = False
        self._run(self._points.go(quietly=quietly))
        self.clock.left()

    def obey(self) -> None:
        """Let all ranks obey what has come, if they are at a point."""
        self._check()
        if self._is_open and self._points.limit < self.end.listed:
            self._points.obey(self.end.listed)
            self.end.allow(self.end.listed)

    def passes(self) -> bool:
        """Return whether this boundary is no point."""
        return self._points.passes()

    def _run(self, waiting: Generator[int | None, None, _Found]) -> _Found:
        try:
            while True:
                rank = next(waiting)
                self._page.wait_for_line(rank or 0, self._points.point, _SLEEP_S)
                self._check()
        except StopIteration as done:
            found: _Found = done.value
            return found


class Follower:
    """The part of any other rank."""

    def __init__(self, page: GroupPage, points: FollowerPoints, check: Callable[[], None]) -> None:
        """`check` raises if rank 0 has ended."""
        self._page, self._points, self._check = page, points, check
        self.clock = RankClock(page)

    @property
    def limit(self) -> int:
        """How many orders of the group's list this rank may obey by now."""
        return self._points.limit

    @property
    def may_leave(self) -> bool:
        """Whether rank 0 has let this rank leave the present point."""
        return self._points.may_leave

    def passes(self) -> bool:
        """Return whether this boundary is no point."""
        return self._points.passes()

    def exchange(self, line: Line) -> Lines:
        """Give the numbers of this rank. Return those of all."""
        waiting = self._points.exchange(line)
        try:
            while True:
                rank = next(waiting)
                self._page.wait_for_line(rank or 0, self._points.point, _SLEEP_S)
                self._check()
        except StopIteration as done:
            found: Lines = done.value
            return found

    def arrive(self) -> None:
        """Come to a point without numbers."""
        self._points.arrive()

    def wait(self, timeout_s: float) -> None:
        """Wait for another word of the present point, for a millisecond or `timeout_s`, whichever is shorter."""
        heard, before = self._page.words_said, self._points.limit
        if not (self._points.hear() or self._points.limit > before):
            self._page.wait_for_word(heard, min(timeout_s, _SLEEP_S))
            self._points.hear()
            self._check()
        if self._points.may_leave:
            self.clock.left()
