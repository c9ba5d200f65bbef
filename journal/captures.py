"""Finding captures: the folded states that lie at segment heads and, now and then, between the frames.

They are looked for from the end backwards, header by header, since each names the one before it; no body is read on the
way. A capture counts only if it verifies and the frame behind it names its hash. Where a header does not verify, the one
at the segment's head is left; what the damage means is for the fold behind it to find.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from journal.format import FrameKind
from journal.frame import Flaw
from journal.locate import Target, start_near
from journal.segment import SegmentView, Tail, Walk


class Capture(msgspec.Struct, frozen=True):
    """The state folded over events 1 to `seq`, as the writer's opener encoded it."""

    seq: int
    body: bytes


def captures_back(views: Iterable[SegmentView], offset: int, chain: bytes) -> Iterator[Capture]:
    """The captures from the frame at `offset` in the first of `views` backwards; `views` are given newest first.

    `chain` is the value behind that frame.
    """
    for view in views:
        try:
            yield from _in_one(view, offset, chain)
        finally:
            view.close()
        offset, chain = view.header.previous_last_offset, view.header.previous_chain


def _in_one(view: SegmentView, offset: int, chain: bytes) -> Iterator[Capture]:
    while offset:
        header = view.header_at(offset)
        # Only the header is verified here, so what it says of the frame before it may be forged: backwards, or not at all.
        if isinstance(header, Flaw) or header.previous_offset >= offset:
            yield from _at_head(view)
            return
        if header.kind == FrameKind.CAPTURE:
            frame = view.frame_at(offset)
            if not isinstance(frame, Flaw) and frame.chain == chain:
                yield Capture(header.last_seq, frame.body)
        offset, chain = header.previous_offset, header.previous_chain


def end_behind(view: SegmentView, seq: int, successor: SegmentView | None) -> Tail:
    """Where the frames of `view` end that belong to the state at event `seq`."""
    walk = Walk(view, start_near(view, Target("first_seq", seq + 1), successor))
    while not isinstance(found := walk.look(), Flaw) and found.header.last_seq <= seq:
        walk.tail.advance(found.header, found.chain, view.alignment)
    return walk.tail


def _at_head(view: SegmentView) -> Iterator[Capture]:
    """The capture a segment begins with: its first frame, or its second behind a POISON frame."""
    # Through a walk and not by offset, so that the frame is verified like any other.
    for frame in Walk(view):
        if frame.header.kind == FrameKind.CAPTURE:
            yield Capture(frame.header.last_seq, frame.body)
        if frame.header.kind != FrameKind.POISON:
            return
