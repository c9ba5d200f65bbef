"""Count the content of a journal: its size on disk, and the bytes that a step takes.

All figures are counted from frame headers. The walk verifies each frame and decodes no event. It can read a journal that
is being written, like any reader.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from journal.files import OS_FILES, Files
from journal.format import EntryHeader, FrameKind
from journal.frame import Flaw, frame_bytes
from journal.segment import SegmentName, SegmentView, Walk, list_segments

_EVENTS: Final = int(FrameKind.EVENTS)


class FrameSizes(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of the frames with events on disk, in bytes with their padding."""

    least: int
    median: int
    p99: int
    most: int


class JournalSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `summarize`. Times are wall clock in ns since 1970, 0 if there is no event."""

    segments: int
    segments_poisoned: int  # begun because a write to the segment before failed
    boots: int  # number of the machine's boots in which segments were begun
    frames: int
    events: int
    segments_packed: int
    file_bytes: int  # of all segment files, with zeros at places for later frames
    packed_bytes: int  # of the packed segment files only
    frame_bytes: int  # of all frames, with their padding
    event_bytes: int  # of the events alone
    steps: int  # the highest step label
    bytes_a_step: float | None  # of frames with events, padding included; None without steps
    bytes_a_step_packed: float | None  # file bytes of packed segments for each of their steps; None without them
    events_a_frame: float
    first_wall_ns: int
    last_wall_ns: int
    frame_sizes: FrameSizes | None
    frames_by_kind: dict[str, int]


class _Counts:
    """The sums of one walk over the journal."""

    def __init__(self) -> None:
        self.by_kind: dict[str, int] = {}
        self.sizes: dict[int, int] = {}  # from the bytes on disk of a frame with events to the number of such frames
        self.boots: set[bytes] = set()
        self.segments = self.file_bytes = self.frame_bytes = self.event_bytes = self.events = self.poisoned = 0
        self.packed = self.packed_bytes = self.packed_steps = 0
        self.first: EntryHeader | None = None
        self.last: EntryHeader | None = None

    def segment(self, view: SegmentView) -> None:
        self.segments += 1
        file_bytes = view.file_bytes()
        self.file_bytes += file_bytes
        if view.is_packed:
            self.packed += 1
            self.packed_bytes += file_bytes
        self.boots.add(view.header.boot_id)
        # A POISON frame can only be the first frame of a segment.
        first = view.frame_at(view.alignment)
        if not isinstance(first, Flaw) and first.header.kind == FrameKind.POISON:
            self.poisoned += 1

    @property
    def steps(self) -> int:
        """The highest step label so far."""
        return self.last.step_max if self.last is not None else 0

    def frame(self, header: EntryHeader, alignment: int) -> None:
        kind, size = header.kind, frame_bytes(header.body_bytes, alignment)
        name = FrameKind(kind).name.lower() if kind in FrameKind._value2member_map_ else str(kind)
        self.by_kind[name] = self.by_kind.get(name, 0) + 1
        # Kinds of a newer version are counted under their number, so the sum of all kinds is the number of frames.
        self.frame_bytes += size
        if kind == _EVENTS:
            self.sizes[size] = self.sizes.get(size, 0) + 1
            self.events += header.count
            self.event_bytes += header.body_bytes - (1 if header.count < 16 else 3)  # without the array's head
            self.first, self.last = self.first or header, header


def summarize(folder: Path, *, files: Files = OS_FILES) -> JournalSummary:
    """Count the content of the journal in `folder`, up to the first frame that does not verify. `verify` finds damage.

    Raises JournalMissing, JournalDamaged (a header or a name), JournalTooNew, OSError.
    """
    counts = _Counts()
    names = list_segments(files, folder)
    for name, successor in zip(names, [*names[1:], None], strict=True):
        view = SegmentView(files, name)
        try:
            if successor is not None:
                # Without the limit, frames whose write failed would be counted twice: void here, and again in the
                # next segment.
                view.limit = _end_of(files, successor)
            counts.segment(view)
            steps = counts.steps
            for frame in Walk(view):
                counts.frame(frame.header, view.alignment)
            if view.is_packed:
                counts.packed_steps += counts.steps - steps
        finally:
            view.close()
    return _summary(counts)


def _end_of(files: Files, successor: SegmentName) -> int:
    view = SegmentView(files, successor)
    view.close()
    return view.header.previous_length


def _summary(counts: _Counts) -> JournalSummary:
    frames = sum(counts.sizes.values())
    steps = counts.steps
    with_events = sum(size * number for size, number in counts.sizes.items())
    return JournalSummary(
        segments=counts.segments,
        segments_poisoned=counts.poisoned,
        boots=len(counts.boots),
        frames=sum(counts.by_kind.values()),
        events=counts.events,
        segments_packed=counts.packed,
        file_bytes=counts.file_bytes,
        packed_bytes=counts.packed_bytes,
        frame_bytes=counts.frame_bytes,
        event_bytes=counts.event_bytes,
        steps=steps,
        bytes_a_step=with_events / steps if steps else None,
        bytes_a_step_packed=counts.packed_bytes / counts.packed_steps if counts.packed_steps else None,
        events_a_frame=counts.events / frames if frames else 0.0,
        first_wall_ns=counts.first.wall_ns if counts.first is not None else 0,
        last_wall_ns=counts.last.wall_ns if counts.last is not None else 0,
        frame_sizes=_sizes(counts.sizes) if counts.sizes else None,
        frames_by_kind=dict(sorted(counts.by_kind.items())),
    )


def _sizes(sizes: dict[int, int]) -> FrameSizes:
    total = sum(sizes.values())

    def quantile(share: float) -> int:
        passed = 0
        for size in sorted(sizes):
            passed += sizes[size]
            # The sizes are counted, not stored one by one: a journal has millions of frames but few different sizes.
            if passed >= share * total:
                return size
        return max(sizes)

    return FrameSizes(least=min(sizes), median=quantile(0.5), p99=quantile(0.99), most=max(sizes))
