"""Read a journal without a lock, also while a writer adds to it.

A `Reader` is a cursor. Iterating yields the entries after it, up to the present end. Iterating again yields the entries
that were added since. An entry may appear shortly before its writer reports it as durable, but no other entry appears.
A segment is read only if it follows from the one before it: two continuations of a run are never read as one history.

The remains of a write that is in flight, or torn, end an iteration like the end of the journal. The reader raises only
if the journal is damaged and cannot be read further.
"""

from __future__ import annotations

import bisect
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Self

from journal.errors import UNREADABLE, BatchRefused, Damage, JournalDamaged, JournalMissing
from journal.files import OS_FILES, Files
from journal.format import EVENTS, FrameKind
from journal.frame import Flaw, Frame
from journal.locate import Target, last_frame_start, start_near
from journal.records import (
    Capture,
    JournalEntry,
    Mark,
    captures_back,
    end_after,
    entries_of,
    entry_of,
    others_of,
    records_of,
)
from journal.scan import check_link, declares_void, refusal, settle
from journal.segment import SegmentView, Tail, Walk, list_segments
from journal.tail import Decision

_AHEAD_BYTES: Final = 1 << 20  # how far a reader looks after zeros for frames that must not be there
_NO_SEQ: Final = (1 << 64) - 2  # greater than every sequence number
# Labels can decrease, their running maxima cannot. Only the maxima can be searched by halving.
_SEEK_KEYS: Final = {"time_ns": "wall_ns_max", "epoch": "epoch_max", "step": "step_max"}


class Reader:
    """A cursor over the journal in `path`, a run's journal folder. Close it, or use it in a `with` statement."""

    def __init__(self, path: Path, *, files: Files = OS_FILES) -> None:
        """Raises JournalMissing, JournalDamaged (a header or a name), JournalTooNew, OSError."""
        self.files = files
        self.folder = Path(path)
        self._names = list_segments(files, self.folder)
        if not self._names:
            raise JournalMissing("the journal is empty", path=self.folder, hint="Its writer has not begun it yet.")
        self._views: dict[int, SegmentView] = {}
        self._examined_no = 0
        self._after_seq = 0
        self._pending: deque[JournalEntry] = deque()  # entries of the last frame that were not yielded yet
        self._moves = 0  # how often the cursor was moved to another place
        self._linked: set[int] = set()  # the places whose link to the segment before was checked
        # Open at the first segment. `seek` and `tail` move without reading the segments in between.
        self._walk: Walk
        try:
            self._enter(0)
        except BaseException:
            self.close()
            raise

    @property
    def run_id(self) -> bytes:
        """The run's 16 bytes."""
        return self._walk.view.header.run_id

    @property
    def segments(self) -> int:
        """The number of segments when the folder was last read."""
        return len(self._names)

    @property
    def last_seq(self) -> int:
        """The last sequence number in the journal now; 0 if it contains no event. Reads only a few blocks."""
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

    def __iter__(self) -> Iterator[JournalEntry]:
        pending, frames, moves = self._pending, self._frames(), self._moves
        while True:
            while pending:
                entry = pending.popleft()
                self._after_seq = entry.seq
                yield entry
            if moves != self._moves:  # the caller has moved the cursor while it iterated
                frames, moves = self._frames(), self._moves
            for view, frame in frames:
                header = frame.header
                # The second check passes over events that were read before: their write failed, and they were written
                # once more in the next segment.
                if header.kind != EVENTS or header.last_seq <= self._after_seq:  # safety: event-returned-once
                    continue
                if header.count > 1:
                    # A queue, not an inner loop: the caller may stop in the middle of a frame and continue later.
                    pending.extend(entries_of(view, frame, self._after_seq))
                    break
                # A frame with one event, as a run writes its steps, does not need the queue.
                entry = entry_of(view, frame)
                self._after_seq = entry.seq
                yield entry
                if moves != self._moves:
                    break
            else:
                return

    def without(
        self, is_usual: Callable[[bytes], bool], last_seq: int | None = None
    ) -> Iterator[tuple[int, JournalEntry]]:
        """Yield the entries from the cursor on that are not usual, each with the number of usual ones before it.

        `is_usual` is asked about the first 32 bytes of an event; usual ones begin alike, so a frame of them costs one
        question. `last_seq`: end with the frame of this event. Do not move the cursor meanwhile.
        """
        usual = 0
        for view, frame in self._frames():
            if last_seq is not None and frame.header.first_seq > last_seq:
                return
            if frame.header.kind == EVENTS and frame.header.last_seq > self._after_seq:
                passed, others = others_of(view, frame, self._after_seq, is_usual)
                yield from ((usual + before, entry) for before, entry in others)
                usual += passed
                self._after_seq = frame.header.last_seq

    def records(self, after_seq: int = 0) -> Iterator[JournalEntry | Mark]:
        """Yield every entry after `after_seq` and every mark of a state at or after it, in order. Moves the cursor."""
        # From `after_seq` itself and not from the next event: marks of that state are after its frame.
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
        """Yield the folded states at the segment heads and between the frames, newest first.

        If `until_seq` is given, yield only states up to that event.
        """
        self._look_for_more()
        place, seq = len(self._names) - 1, _NO_SEQ
        if until_seq is not None:
            seq = until_seq
            # The capture at a segment's head is the state before its first event, hence `seq + 1`.
            place = max(0, bisect.bisect_right(self._names, seq + 1, key=lambda name: name.first_seq) - 1)
        view = self._borrow(place)
        try:
            self._check_link(place, view)
            successor = self._borrow(place + 1) if place + 1 < len(self._names) else None
            if successor is not None:
                view.limit = successor.header.previous_length
                successor.close()
            tail = end_after(view, seq, successor)
        finally:
            view.close()
        # Start at the end of the walk, not at the newest frame: only captures up to this state are useful.
        yield from captures_back(map(self._borrow, range(place, -1, -1)), tail.previous_offset, tail.chain)

    def seek(
        self, *, seq: int | None = None, step: int | None = None, epoch: int | None = None, time_ns: int | None = None
    ) -> Self:
        """Move the cursor to the first entry at or after one position, and return the reader. Give one argument.

        For `step`, `epoch` and `time_ns` the position is the first one at which the label's running maximum reaches the
        value. A step that was re-run after a restart is found at its first record.
        """
        given = {"seq": seq, "step": step, "epoch": epoch, "time_ns": time_ns}
        wanted = {name: value for name, value in given.items() if value is not None}
        if len(wanted) != 1:
            raise BatchRefused("seek takes exactly one of seq, step, epoch, time_ns", path=self.folder)
        ((name, value),) = wanted.items()
        self._look_for_more()
        if name == "seq":
            self._seek(Target("first_seq", value + 1))
            # A frame may hold several events. The cursor then passes over those before `value`.
            self._after_seq = value - 1
        else:
            self._seek(Target(_SEEK_KEYS[name], value))
            self._skip_to(Target(_SEEK_KEYS[name], value))
        return self

    def tail(self, count: int) -> list[JournalEntry]:
        """Return the last `count` entries in order, read backwards from the end. The cursor ends after the last one."""
        self._look_for_more()
        self._enter(len(self._names) - 1)
        # First forwards from the last frame, because a writer may have added entries, then backwards for the rest.
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
    ) -> Iterator[JournalEntry]:
        """Yield the entries after the cursor, then those a writer adds, until `until()` is true at the journal's end.

        `until()` is called before the journal is read. So every entry that was durable when it returned true is
        yielded.
        """
        while True:
            # Ask first, then read: else an event that becomes durable between the two would be missing.
            over = until()
            yield from self
            if over:
                return
            sleep(poll_s)

    def _view(self, place: int) -> SegmentView:
        view = self._views.get(place)
        # Views are kept by index. The one after the cursor is needed for its header, which says where this segment
        # ends.
        if view is None:
            view = self._views[place] = SegmentView(self.files, self._names[place])
        return view

    def _borrow(self, place: int) -> SegmentView:
        """Return a view that the caller reads and closes. Only the views at the cursor are kept open."""
        return self._views.get(place) or SegmentView(self.files, self._names[place])

    def _look_for_more(self) -> None:
        # Segments are added only at the end, so the indices of known segments stay valid.
        names = list_segments(self.files, self.folder)
        # Packing changes names, not numbers, and `open_segment` finds the packed file. So known names may stay as
        # they are.
        if len(names) > len(self._names):
            self._names = names

    def _successor(self) -> SegmentView | None:
        if self._place + 1 >= len(self._names):
            self._look_for_more()
        return self._view(self._place + 1) if self._place + 1 < len(self._names) else None

    def _enter(self, place: int, start: Tail | None = None) -> None:
        # A long journal has thousands of segments. Only the two at the cursor stay open.
        for other in set(self._views) - {place, place + 1}:
            self._views.pop(other).close()
        self._place = place
        self._moves += 1
        self._pending.clear()
        view = self._view(place)
        self._check_link(place, view)
        view.refresh()  # the view may have been kept, and a live writer may have written since
        if place + 1 < len(self._names):
            view.limit = self._view(place + 1).header.previous_length
        self._walk = Walk(view, start)

    def _check_link(self, place: int, view: SegmentView) -> None:
        """Raise JournalDamaged if a segment does not follow from the one before it."""
        if place in self._linked:
            return
        before = self._borrow(place - 1) if place else None
        try:
            check_link(before, view)  # safety: reader-follows-links
        except JournalDamaged as error:
            # If the end of the one before cannot be read, nothing says that this one is another run's continuation. A
            # reader that comes from there has found the damage already.
            if error.damage not in (Damage.FRAME, Damage.PACKED):
                raise
        finally:
            if before is not None and place - 1 not in self._views:
                before.close()
        self._linked.add(place)

    def _frames(self) -> Iterator[tuple[SegmentView, Frame]]:
        while True:
            view = self._walk.view
            for frame in self._walk:
                yield view, frame
            if not self._go_on():
                return

    def _go_on(self) -> bool:
        """Decide what follows where the walk stopped: True to walk on, False at the present end. Raises on damage."""
        walk, successor = self._walk, self._successor()
        # The successor is asked first: if it says that the segment ends here, the bytes after this place mean
        # nothing.
        if successor is not None and self._ends_here(walk.tail.offset, successor):
            self._enter(self._place + 1)
            self._moves -= 1  # entering the next segment is no move of the cursor to another place
            return True
        segment_no = walk.view.header.segment_no
        # safety: reader-looks-past-zeros
        if successor is None and walk.flaw is Flaw.NOTHING and self._examined_no == segment_no:
            return False  # the rest was examined before, so a poll costs one small read
        # Zeros are the end only if nothing follows them. A reader examines the next blocks once per segment; only
        # `verify` reads the whole rest. If there are bytes at the end, all of the rest is needed to classify them.
        stop = settle(walk, self._successor, _AHEAD_BYTES if walk.flaw is Flaw.NOTHING else None)
        # The writer has added the next frame meanwhile.
        if stop is None:
            return True
        if stop.decision not in (Decision.END, Decision.TORN):  # safety: reader-raises-on-damage
            raise refusal(walk.view, stop)
        # Remember it only after a good end: damage must be found again by the next call.
        self._examined_no = segment_no
        return False

    @staticmethod
    def _ends_here(offset: int, successor: SegmentView) -> bool:
        # The walk may also be after the end: it read a frame whose write failed before the frame was declared void. The
        # next segment has the same events under the same numbers, and the cursor passes over them.
        end = successor.header.previous_length
        return offset == end or (offset > end and declares_void(successor))  # safety: reader-passes-void-only

    def _seek(self, target: Target) -> None:
        places = range(len(self._names))
        if target.key == "first_seq":
            # Sequence numbers are in the names, so no file is opened. Other labels are read from each segment's first
            # frame.
            after = bisect.bisect_left(places, True, key=lambda place: self._names[place].first_seq >= target.value)
        else:
            after = bisect.bisect_left(places, True, key=lambda place: not self._begins_before(place, target))
        self._enter(max(0, after - 1))
        view = self._walk.view
        self._walk = Walk(view, start_near(view, target, self._views.get(self._place + 1)))

    def _begins_before(self, place: int, target: Target) -> bool:
        view = self._borrow(place)
        try:
            head = view.header_at(view.alignment)
        finally:
            view.close()
        # If the first frame does not verify, start in this segment: reading then reports the damage instead of
        # passing over it.
        return isinstance(head, Flaw) or target.lies_after(head)

    def _skip_to(self, target: Target) -> None:
        walk = self._walk
        while not isinstance(found := walk.check(), Flaw):
            if found.header.kind == FrameKind.EVENTS and not target.lies_after(found.header):
                break
            walk.tail.advance(found.header, found.chain, walk.view.alignment)
        self._after_seq = walk.tail.last_seq

    def _frames_back(self, place: int, offset: int, chain: bytes) -> Iterator[tuple[SegmentView, Frame]]:
        """Yield the frames backwards from `offset` in segment `place`, each verified against the frame after it."""
        while True:
            view = self._borrow(place)
            try:
                while offset:
                    frame = view.frame_at(offset)
                    if isinstance(frame, Flaw) or frame.chain != chain:  # safety: backwards-verified
                        what = UNREADABLE
                        # The frame after this one was intact, so this one was acknowledged. This is damage and never
                        # a torn write.
                        raise JournalDamaged(what, damage=Damage.FRAME, path=view.path, offset=offset)
                    yield view, frame
                    offset, chain = frame.header.previous_offset, frame.header.previous_chain
                # Continue in the segment before: its last frame and the chain value are in this segment's header.
                offset, chain = view.header.previous_last_offset, view.header.previous_chain
            finally:
                view.close()
            if place == 0:
                return
            place -= 1

    def _end_walk(self) -> Walk:
        # A walk of its own: asking for the end must not move the cursor.
        self._look_for_more()
        view = self._borrow(len(self._names) - 1)
        try:
            walk = Walk(view, last_frame_start(view))
            for _ in walk:
                continue
        finally:
            view.close()
        return walk
