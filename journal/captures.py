"""Find captures: the folded states at the heads of segments and, at intervals, between the frames.

The search goes backwards from the end, header by header, because each header names the one before it; no body is read
on the way. A capture is used only if it verifies and the frame after it names its hash. If a header does not verify,
only the capture at the segment's head is left. The fold that follows reports the damage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from journal.format import FrameKind
from journal.frame import Flaw
from journal.locate import Target, start_near
from journal.segment import SegmentView, Tail, Walk


class Capture(msgspec.Struct, frozen=True):
    """The state folded over events 1 to `seq`, in the encoding of the program that opened the writer."""

    seq: int
    body: bytes


def captures_back(views: Iterable[SegmentView], offset: int, chain: bytes) -> Iterator[Capture]:
    """The captures from the frame at `offset` in the first of `views` backwards; `views` are given newest first.

    `chain` is the chain value after that frame.
    """
    for view in views:
        try:
            yield from _in_one(view, offset, chain)
        finally:
            # At most one file is open at a time: the search may go back through thousands of segments.
            view.close()
        # The segment's header carries the end of its predecessor, so the search crosses files without reading them
        # from the start.
        offset, chain = view.header.previous_last_offset, view.header.previous_chain


def _in_one(view: SegmentView, offset: int, chain: bytes) -> Iterator[Capture]:
    while offset:
        header = view.header_at(offset)
        # Only the header is verified here, so its link may be forged. A link that does not lead backwards would make
        # this loop run for ever.
        if isinstance(header, Flaw) or header.previous_offset >= offset:  # safety: backwards-never-goes-forward
            yield from _at_head(view)
            return
        if header.kind == FrameKind.CAPTURE:
            frame = view.frame_at(offset)
            # The next frame's header carries the hash of this one. A capture that somebody changed, with good
            # checksums, fails here.
            if not isinstance(frame, Flaw) and frame.chain == chain:  # safety: capture-in-chain
                yield Capture(header.last_seq, frame.body)
        # Carry the chain value along: it proves the frame before, without reading any body in between.
        offset, chain = header.previous_offset, header.previous_chain


def end_after(view: SegmentView, seq: int, successor: SegmentView | None) -> Tail:
    """Return the tail after the last frame of `view` that belongs to the state at event `seq`."""
    walk = Walk(view, start_near(view, Target("first_seq", seq + 1), successor))
    while not isinstance(found := walk.look(), Flaw) and found.header.last_seq <= seq:
        walk.tail.advance(found.header, found.chain, view.alignment)
    return walk.tail


def _at_head(view: SegmentView) -> Iterator[Capture]:
    """Yield the capture at a segment's head: its first frame, or its second after a POISON frame."""
    # Use a walk, not an offset, so that the frame is verified like any other.
    for frame in Walk(view):
        if frame.header.kind == FrameKind.CAPTURE:
            yield Capture(frame.header.last_seq, frame.body)
        if frame.header.kind != FrameKind.POISON:
            return
