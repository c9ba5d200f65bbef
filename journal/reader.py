"""Reading a journal without a lock, also while it is written.

A `Reader` is a cursor. Iterating yields what lies behind it, up to the end as it is at that moment; iterating again goes
on with what has come since. It may show events a moment before their writer reports them durable, never others.

At the end it tells three things apart: nothing more; the remains of a write that is in flight or was torn; damage. It
raises only for damage, and only where the journal cannot be read on.
"""

from __future__ import annotations

import bisect
import enum
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Self

from journal import sentences
from journal.captures import Capture, captures_back, end_behind
from journal.errors import BatchRefused, Damage, JournalDamaged, JournalMissing
from journal.files import OS_FILES, Files
from journal.format import FrameKind
from journal.frame import Flaw, Frame
from journal.locate import Target, last_frame_start, start_near
from journal.records import Entry, Mark, entries_of, entry_of, records_of
from journal.scan import declares_void, refusal, settle
from journal.segment import SegmentView, Tail, Walk, list_segments
from journal.tail import Decision

_EVENTS: Final = int(FrameKind.EVENTS)
_AHEAD_BYTES: Final = 1 << 20  # how far a reader looks behind zeros for what must not be there
_NO_SEQ: Final = (1 << 64) - 2  # behind every sequence number
_SEEK_KEYS: Final = {"time_ns": "wall_ns_max", "epoch": "epoch_max", "step": "step_max"}


class TailState(enum.StrEnum):
    """What a reader found at the end of the journal."""

    END = "end"  # zeros: nothing more, for now
    TORN = "torn"  # part of a write: in flight if the writer lives, torn if it died


class Reader:
    """A cursor over the journal in `path`, a run's journal folder. Close it, or use it in a `with` statement."""

    def __init__(self, path: Path, *, files: Files = OS_FILES) -> None:
        """Raises JournalMissing, JournalDamaged (a header or a name), JournalTooNew, OSError."""
        self._files = files
        self._folder = Path(path)
        self._names = list_segments(files, self._folder)
        if not self._names:
            raise JournalMissing("the journal is empty", path=self._folder, hint="Its writer has not begun it yet.")
        self._views: dict[int, SegmentView] = {}
        self._examined_no = 0
        self.tail_state = TailState.END
        self._after_seq = 0
        self._pending: deque[Entry] = deque()  # of the frame that was read last
        self._moves = 0  # how often the cursor was put elsewhere
        self._walk: Walk
        self._enter(0)

    @property
    def run_id(self) -> bytes:
        """The run's 16 bytes."""
        return self._walk.view.header.run_id

    @property
    def segments(self) -> int:
        """How many segments there were when they were last looked for."""
        return len(self._names)

    @property
    def last_seq(self) -> int:
        """The last sequence number in the journal now; 0 if it holds no event. Reads a few blocks only."""
        return self._end_walk().tail.last_seq

    def close(self) -> None:
        """Close the files."""
        for view in self._views.values():
            view.close()
        self._views.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Entry]:
        pending, frames, moves = self._pending, self._frames(), self._moves
        while True:
            while pending:
                entry = pending.popleft()
                self._after_seq = entry.seq
                yield entry
            if moves != self._moves:  # whoever iterates has sought another place meanwhile
                frames, moves = self._frames(), self._moves
            for view, frame in frames:
                header = frame.header
                if header.kind != _EVENTS or header.last_seq <= self._after_seq:
                    continue
                if header.count > 1:
                    pending.extend(entries_of(view, frame, self._after_seq))
                    break
                # As a run writes its steps: not by way of the queue.
                entry = entry_of(view, frame)
                self._after_seq = entry.seq
                yield entry
                if moves != self._moves:
                    break
            else:
                return

    def records(self, after_seq: int = 0) -> Iterator[Entry | Mark]:
        """Every entry behind `after_seq` and every mark of a state at or behind it, in order. Moves the cursor."""
        if after_seq > 0:
            self.seek(seq=after_seq)
        else:
            self._enter(0)
            self._after_seq = 0
        for view, frame in self._frames():
            for record in records_of(view, frame, after_seq):
                after_seq = self._after_seq = record.seq
                yield record

    def captures(self, until_seq: int | None = None) -> Iterator[Capture]:
        """The folded states at the segment heads and between the frames, newest first.

        With `until_seq`: those of that event's state or an earlier one.
        """
        self._look_for_more()
        place, seq = len(self._names) - 1, _NO_SEQ
        if until_seq is not None:
            seq = until_seq
            # A head's capture is of the state before its segment's first event.
            place = max(0, bisect.bisect_right(self._names, seq + 1, key=lambda name: name.first_seq) - 1)
        view = self._borrow(place)
        successor = self._borrow(place + 1) if place + 1 < len(self._names) else None
        if successor is not None:
            view.limit = successor.header.previous_length
            successor.close()
        tail = end_behind(view, seq, successor)
        view.close()
        yield from captures_back(map(self._borrow, range(place, -1, -1)), tail.previous_offset, tail.chain)

    def seek(
        self, *, seq: int | None = None, step: int | None = None, epoch: int | None = None, time_ns: int | None = None
    ) -> Self:
        """Move the cursor to the first entry at or behind one place; exactly one is given. Returns the reader.

        `step`, `epoch` and `time_ns` are reached where the running maximum of the label first reaches them: a step that
        was run again after a restart is found where it was first recorded.
        """
        given = {"seq": seq, "step": step, "epoch": epoch, "time_ns": time_ns}
        wanted = {name: value for name, value in given.items() if value is not None}
        if len(wanted) != 1:
            raise BatchRefused("seek takes exactly one of seq, step, epoch, time_ns", path=self._folder)
        ((name, value),) = wanted.items()
        self._look_for_more()
        if name == "seq":
            self._seek(Target("first_seq", value + 1))
            self._after_seq = value - 1
        else:
            self._seek(Target(_SEEK_KEYS[name], value))
            self._skip_to(Target(_SEEK_KEYS[name], value))
        return self

    def tail(self, count: int) -> list[Entry]:
        """The last `count` entries in order, read from the end backwards. The cursor is left behind the last one."""
        self._look_for_more()
        self._enter(len(self._names) - 1)
        # Forward from the last frame for what a writer may have added, then backward for what is missing.
        walk = self._walk = Walk(self._walk.view, last_frame_start(self._walk.view))
        place, before, chain = self._place, walk.tail.previous_offset, walk.tail.chain
        self._after_seq = walk.tail.last_seq
        pages = [list(self)]
        missing = count - len(pages[0])
        for view, frame in self._frames_back(place, before, chain):
            if missing <= 0:
                break
            if frame.header.kind == FrameKind.EVENTS:
                pages.append(entries_of(view, frame, 0))
                missing -= len(pages[-1])
        entries = [entry for page in reversed(pages) for entry in page]
        return entries[max(0, len(entries) - count) :]

    def follow(
        self,
        *,
        poll_s: float = 0.1,
        until: Callable[[], bool] = lambda: False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Iterator[Entry]:
        """Yield what is behind the cursor, then what a writer adds, until `until()` says so at the end of the journal.

        What was durable when `until()` said so is yielded: it is asked before the journal is read, not after.
        """
        while True:
            over = until()
            yield from self
            if over:
                return
            sleep(poll_s)

    def _view(self, place: int) -> SegmentView:
        view = self._views.get(place)
        if view is None:
            view = self._views[place] = SegmentView(self._files, self._names[place])
        return view

    def _borrow(self, place: int) -> SegmentView:
        """A view to look at once and close; only the views at the cursor are kept."""
        return self._views.get(place) or SegmentView(self._files, self._names[place])

    def _look_for_more(self) -> None:
        # Segments are only ever added at the end; the places of those known stay what they are.
        names = list_segments(self._files, self._folder)
        if len(names) > len(self._names):
            self._names = names

    def _successor(self) -> SegmentView | None:
        if self._place + 1 >= len(self._names):
            self._look_for_more()
        return self._view(self._place + 1) if self._place + 1 < len(self._names) else None

    def _enter(self, place: int, start: Tail | None = None) -> None:
        # A long journal has thousands of segments: only the two at the cursor are kept open.
        for other in set(self._views) - {place, place + 1}:
            self._views.pop(other).close()
        self._place = place
        self._moves += 1
        self._pending.clear()
        view = self._view(place)
        view.refresh()  # kept from before, its window may be older than what a live writer has written since
        if place + 1 < len(self._names):
            view.limit = self._view(place + 1).header.previous_length
        self._walk = Walk(view, start)

    def _frames(self) -> Iterator[tuple[SegmentView, Frame]]:
        while True:
            view = self._walk.view
            for frame in self._walk:
                yield view, frame
            if not self._go_on():
                return

    def _go_on(self) -> bool:
        """Judge the place where the walk stopped: True to walk on, False at the end for now. Raises on damage."""
        walk, successor = self._walk, self._successor()
        if successor is not None and self._ends_here(walk.tail.offset, successor):
            self._enter(self._place + 1)
            self._moves -= 1  # that was going on, not elsewhere
            return True
        segment_no = walk.view.header.segment_no
        if successor is None and walk.flaw is Flaw.NOTHING and self._examined_no == segment_no:
            self.tail_state = TailState.END  # the rest was looked at before; a poll costs one small read
            return False
        # Zeros are the end only if nothing follows them. Once per segment the next blocks are looked at; that the whole
        # rest is zero is for `verify` to read. Where something lies at the end, all of it is needed to tell what.
        stop = settle(walk, self._successor, _AHEAD_BYTES if walk.flaw is Flaw.NOTHING else None)
        if stop is None:
            return True
        if stop.decision not in (Decision.END, Decision.TORN):
            raise refusal(walk.view, stop)
        self.tail_state = TailState.END if stop.decision is Decision.END else TailState.TORN
        self._examined_no = segment_no
        return False

    @staticmethod
    def _ends_here(offset: int, successor: SegmentView) -> bool:
        # Behind the end is possible too: a frame whose write failed, read before it was declared void. Its events
        # follow again under the same numbers, and the cursor passes over them.
        end = successor.header.previous_length
        return offset == end or (offset > end and declares_void(successor))

    def _seek(self, target: Target) -> None:
        places = range(len(self._names))
        if target.key == "first_seq":
            behind = bisect.bisect_left(places, True, key=lambda place: self._names[place].first_seq >= target.value)
        else:
            behind = bisect.bisect_left(places, True, key=lambda place: not self._begins_before(place, target))
        self._enter(max(0, behind - 1))
        view = self._walk.view
        self._walk = Walk(view, start_near(view, target, self._views.get(self._place + 1)))

    def _begins_before(self, place: int, target: Target) -> bool:
        view = self._borrow(place)
        head = view.header_at(view.alignment)
        view.close()
        return isinstance(head, Flaw) or target.is_behind(head)

    def _skip_to(self, target: Target) -> None:
        walk = self._walk
        while not isinstance(found := walk.look(), Flaw):
            if found.header.kind == FrameKind.EVENTS and not target.is_behind(found.header):
                break
            walk.tail.advance(found.header, found.chain, walk.view.alignment)
        self._after_seq = walk.tail.last_seq

    def _frames_back(self, place: int, offset: int, chain: bytes) -> Iterator[tuple[SegmentView, Frame]]:
        """The frames from `offset` in segment `place` backwards, each verified against the one behind it."""
        while True:
            view = self._borrow(place)
            try:
                while offset:
                    frame = view.frame_at(offset)
                    if isinstance(frame, Flaw) or frame.chain != chain:
                        what = sentences.FRAME
                        raise JournalDamaged(what, damage=Damage.FRAME, path=view.path, offset=offset)
                    yield view, frame
                    offset, chain = frame.header.previous_offset, frame.header.previous_chain
                offset, chain = view.header.previous_last_offset, view.header.previous_chain
            finally:
                view.close()
            if place == 0:
                return
            place -= 1

    def _end_walk(self) -> Walk:
        self._look_for_more()
        view = self._borrow(len(self._names) - 1)
        walk = Walk(view, last_frame_start(view))
        for _ in walk:
            continue
        view.close()
        return walk
