"""Find a position in a segment without reading all of it.

A sealed segment has a sparse index in its seal. A segment that is still written is searched by halving. Frames start at
multiples of the alignment and contain their own offset. So the frame that covers a block is the one with the nearest
intact header before it. The result is only a point to start walking from; every frame that is returned is verified.
"""

from __future__ import annotations

import bisect
from typing import NamedTuple

import msgspec

from journal.errors import Damage, JournalDamaged
from journal.format import EntryHeader, FrameKind
from journal.frame import Flaw, Frame
from journal.segment import IndexEntry, SegmentView, Tail


class SealBody(msgspec.Struct, frozen=True):
    """The body of a SEAL frame."""

    first_seq: int
    last_seq: int
    frames: int
    events: int
    chain: bytes
    index: list[IndexEntry]


_SEAL: msgspec.msgpack.Decoder[SealBody] = msgspec.msgpack.Decoder(SealBody)


class Target(NamedTuple):
    """A position to find: after the last frame whose `key` is less than `value`. The keys never decrease."""

    key: str
    value: int

    def lies_after(self, row: IndexEntry | EntryHeader) -> bool:
        """Return whether the position is inside or after the frame of `row`."""
        return bool(getattr(row, self.key) < self.value)


def seal_of(view: SegmentView, frame: Frame) -> SealBody:
    """Return the decoded seal. Raises JournalDamaged."""
    try:
        return _SEAL.decode(frame.body)
    except msgspec.MsgspecError as error:
        what = f"the seal does not decode: {error}"
        raise JournalDamaged(what, damage=Damage.INDEX, path=view.path, offset=frame.header.offset) from error


def tail_at(header: EntryHeader) -> Tail:
    """Return the tail for a walk whose first frame is the one with this header."""
    return Tail(
        offset=header.offset,
        next_seq=header.first_seq,
        # The walk starts in the middle, so the chain value before it is taken from this header. It proves the frames
        # from here on, not those before.
        chain=header.previous_chain,
        previous_offset=header.previous_offset,
        # No index: a walk from the middle cannot rebuild it. Only a walk from the segment's start is compared with
        # the seal's.
        index=[],
    )


def start_near(view: SegmentView, target: Target, successor: SegmentView | None) -> Tail:
    """Return a tail from which a walk of `view` soon reaches the target. It is never after the target."""
    try:
        return _start_near(view, target, successor)
    except JournalDamaged as error:
        if error.damage is not Damage.PACKED:
            raise
        # The piece with the seal may be damaged, or one that the search looks into. What is before it can be read.
        return view.start()


def _start_near(view: SegmentView, target: Target, successor: SegmentView | None) -> Tail:
    if successor is not None:
        # The successor names the last frame, so the seal is found without reading the segment.
        seal = view.frame_at(successor.header.previous_last_offset)
        if not isinstance(seal, Flaw) and seal.header.kind == FrameKind.SEAL:
            # The index is derived and may be wrong. If its frame does not verify, start at the beginning of the
            # segment.
            rows = seal_of(view, seal).index
            place = bisect.bisect_left(rows, True, key=lambda row: not target.lies_after(row))
            return _start_at(view, rows[place - 1].offset) if place else view.start()
    return _start_by_halving(view, target)


def last_frame_start(view: SegmentView) -> Tail:
    """Return a tail from which a walk soon reaches the end of a segment, also while a writer adds to it."""
    return _start_by_halving(view, Target("first_seq", (1 << 64) - 1))


def _start_at(view: SegmentView, offset: int) -> Tail:
    # The index is under the seal's checksum but is derived. A wrong row costs time, never an event.
    header = view.header_at(offset)
    return view.start() if isinstance(header, Flaw) else tail_at(header)


def _start_by_halving(view: SegmentView, target: Target) -> Tail:
    # Block 0 is the segment header. Invariant: the target is inside or after `start`, and before block `high`.
    low, high = 1, (view.limit or view.size) // view.alignment
    start: EntryHeader | None = None
    while low < high:
        middle = (low + high) // 2
        header = _frame_over(view, middle, low)
        # Only the header is verified in the search. The walk from the result verifies the frames.
        if header is not None and target.lies_after(header):
            start, low = header, middle + 1
        else:
            high = middle
    return tail_at(start) if start is not None else view.start()


def _frame_over(view: SegmentView, block: int, lowest: int) -> EntryHeader | None:
    # Return None for a block of zeros. A block of zeros inside a body misleads the search, but only to an earlier
    # start.
    if not any(view.read(block * view.alignment, view.alignment)):
        return None
    # Bytes of a body may look like a header. `header_at` also requires the header to name this offset, segment and
    # run.
    for number in range(block, lowest - 1, -1):
        header = view.header_at(number * view.alignment)
        if not isinstance(header, Flaw):
            return header
    return None
