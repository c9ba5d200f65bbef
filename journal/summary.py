"""Count the content of a journal: its size on disk, and the bytes that a step takes.

All figures are counted from frame headers. The walk verifies each frame and decodes no event. It can read a journal
that is being written, like any reader.
"""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import msgspec

from journal.errors import JournalMissing
from journal.files import OS_FILES, Files
from journal.format import EVENTS, EntryHeader, FrameKind
from journal.frame import Flaw, frame_bytes
from journal.segment import SegmentView, Walk, closed_view, list_segments


class FrameSizes(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of the frames with events on disk, in bytes with their padding."""

    least: int
    median: int
    p99: int
    most: int


class JournalSummary(msgspec.Struct, kw_only=True):
    """The result of `summarize`. Times are wall clock in ns since 1970, 0 if there is no event."""

    segments: int = 0
    segments_poisoned: int = 0  # begun because a write to the segment before failed
    boots: int = 0  # number of the machine's boots in which segments were begun
    frames: int = 0
    events: int = 0
    segments_packed: int = 0
    file_bytes: int = 0  # of all segment files, with zeros at places for later frames
    packed_bytes: int = 0  # of the packed segment files only
    frame_bytes: int = 0  # of all frames, with their padding
    event_bytes: int = 0  # of the events alone
    steps: int = 0  # the highest step label
    bytes_a_step: float | None = None  # of frames with events, padding included; None without steps
    bytes_a_step_packed: float | None = None  # file bytes of packed segments for each of their steps; None without them
    events_a_frame: float = 0.0
    first_wall_ns: int = 0
    last_wall_ns: int = 0
    frame_sizes: FrameSizes | None = None
    frames_by_kind: dict[str, int] = {}


class _Counting:
    """One walk over the journal. `found` is the summary so far; `finish` adds what follows from the sums."""

    def __init__(self) -> None:
        self.found = JournalSummary()
        self._sizes: dict[int, int] = {}  # from the bytes on disk of a frame with events to the number of such frames
        self._boots: set[bytes] = set()
        self._packed_steps = 0

    def segment(self, view: SegmentView) -> None:
        # The highest label so far. A step that is run again has a lower one, so the difference counts each step once.
        found, steps, file_bytes = self.found, self.found.steps, view.file_bytes()
        found.segments += 1
        found.file_bytes += file_bytes
        self._boots.add(view.header.boot_id)
        # A POISON frame can only be the first frame of a segment.
        first = view.frame_at(view.alignment)
        if not isinstance(first, Flaw) and first.header.kind == FrameKind.POISON:
            found.segments_poisoned += 1
        for frame in Walk(view):
            self._frame(frame.header, view.alignment)
        if view.is_packed:
            found.segments_packed += 1
            found.packed_bytes += file_bytes
            self._packed_steps += found.steps - steps

    def _frame(self, header: EntryHeader, alignment: int) -> None:
        found, kind, size = self.found, header.kind, frame_bytes(header.body_bytes, alignment)
        # Kinds of a newer version are counted under their number, so the sum of all kinds is the number of frames.
        name = FrameKind(kind).name.lower() if kind in FrameKind._value2member_map_ else str(kind)
        found.frames_by_kind[name] = found.frames_by_kind.get(name, 0) + 1
        found.frames += 1
        found.frame_bytes += size
        if kind == EVENTS:
            self._sizes[size] = self._sizes.get(size, 0) + 1
            found.first_wall_ns = header.wall_ns if found.events == 0 else found.first_wall_ns
            found.last_wall_ns = header.wall_ns
            found.steps = header.step_max
            found.events += header.count
            found.event_bytes += header.body_bytes - (1 if header.count < 16 else 3)  # without the array's head

    def finish(self) -> JournalSummary:
        found, sizes = self.found, self._sizes
        found.boots = len(self._boots)
        found.frames_by_kind = dict(sorted(found.frames_by_kind.items()))
        if sizes:
            found.events_a_frame = found.events / sum(sizes.values())
            found.frame_sizes = _frame_sizes(sizes)
        if found.steps:
            found.bytes_a_step = sum(size * number for size, number in sizes.items()) / found.steps
        if self._packed_steps:
            found.bytes_a_step_packed = found.packed_bytes / self._packed_steps
        return found


def summarize(folder: Path, *, files: Files = OS_FILES) -> JournalSummary:
    """Count the content of the journal in `folder`, up to the first frame that does not verify. `verify` finds damage.

    Raises JournalMissing, JournalDamaged (a header or a name), JournalTooNew, OSError.
    """
    counting = _Counting()
    names = list_segments(files, folder)
    if not names:
        raise JournalMissing("the journal is empty", path=folder, hint="Its writer has not begun it yet.")
    for name, successor in zip(names, [*names[1:], None], strict=True):
        view = SegmentView(files, name)
        try:
            if successor is not None:
                # Without the limit, frames whose write failed would be counted twice: void here, and again in the
                # next segment.
                view.limit = closed_view(files, successor).header.previous_length
            counting.segment(view)
        finally:
            view.close()
    return counting.finish()


def _frame_sizes(sizes: dict[int, int]) -> FrameSizes:
    # The sizes are counted, not stored one by one: a journal has millions of frames but few different sizes.
    ordered = sorted(sizes.items())
    total = sum(sizes.values())

    def quantile(share: float) -> int:
        passed = accumulate(number for _, number in ordered)
        return next(size for (size, _), count in zip(ordered, passed, strict=True) if count >= share * total)

    return FrameSizes(least=ordered[0][0], median=quantile(0.5), p99=quantile(0.99), most=ordered[-1][0])
