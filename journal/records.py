"""The entries, marks and captures that readers of a journal get, and the walks that yield them.

Captures are the folded states at the heads of segments and, at intervals, between the frames. They are searched
backwards from the end, header by header, because each header names the one before it; no body is read on the way. A
capture is used only if it verifies and the frame after it names its hash. If a header does not verify, only the capture
at the segment's head is left. The fold that follows reports the damage.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from journal.errors import Damage, JournalDamaged
from journal.format import FrameKind
from journal.frame import Flaw, Frame, decode_events
from journal.locate import Target, start_near
from journal.scan import judge, refusal
from journal.segment import SegmentView, Tail, Walk

_HEAD_BYTES: Final = 32  # of an event, by which it is passed over or not


class JournalEntry(msgspec.Struct, frozen=True, gc=False):
    """One event of the journal. `wall_ns`, `epoch` and `step` are the labels of its batch."""

    seq: int
    wall_ns: int
    epoch: int
    step: int
    event: msgspec.Raw


class Mark(msgspec.Struct, frozen=True):
    """A frame without events. `body` belongs to the state after event `seq`.

    `kind` is a FrameKind, or a number if a newer version wrote a skippable kind.
    """

    kind: FrameKind | int
    seq: int
    body: bytes


class Capture(msgspec.Struct, frozen=True):
    """The state folded over events 1 to `seq`, in the encoding of the program that opened the writer."""

    seq: int
    body: bytes


def mark_of(frame: Frame) -> Mark:
    """Return the mark for a frame without events."""
    kind = frame.header.kind
    # A skippable kind of a newer version has no FrameKind here. Its reader still gets the frame.
    known = FrameKind(kind) if kind in FrameKind._value2member_map_ else kind
    return Mark(known, frame.header.last_seq, frame.body)


def events_of(view: SegmentView, frame: Frame) -> list[msgspec.Raw]:
    """Return the events of an EVENTS frame. Raises JournalDamaged if the body does not match the header."""
    events = decode_events(frame)
    if events is None:
        header = frame.header
        what = f"the frame does not contain the {header.count} msgpack events that its header names"
        raise JournalDamaged(what, damage=Damage.BODY, path=view.path, offset=header.offset, seq=header.first_seq)
    return events


def entry_of(view: SegmentView, frame: Frame) -> JournalEntry:
    """Return the entry of an EVENTS frame with one event. Raises JournalDamaged if the body does not match."""
    header = frame.header
    (event,) = events_of(view, frame)
    return JournalEntry(header.first_seq, header.wall_ns, header.epoch, header.step, event)


def entries_of(view: SegmentView, frame: Frame, after_seq: int) -> list[JournalEntry]:
    """Return the entries of an EVENTS frame after `after_seq`. Raises JournalDamaged if the body does not match."""
    header, events = frame.header, events_of(view, frame)
    first, wall_ns, epoch, step = header.first_seq, header.wall_ns, header.epoch, header.step
    # A frame is read whole, but a reader may have stopped, or a fold may begin, between two of its events.
    skipped = max(0, after_seq + 1 - first)
    return [
        JournalEntry(seq, wall_ns, epoch, step, event)
        for seq, event in enumerate(events[skipped:], start=first + skipped)
    ]


def others_of(
    view: SegmentView, frame: Frame, after_seq: int, is_usual: Callable[[bytes], bool]
) -> tuple[int, list[tuple[int, JournalEntry]]]:
    """Return how many events after `after_seq` are usual, and the others, each with the number of usual ones before.

    `is_usual` is asked about the first bytes of an event. Raises JournalDamaged if the body does not match.
    """
    header = frame.header
    skipped = max(0, after_seq + 1 - header.first_seq)
    events = events_of(view, frame)[skipped:]
    # Usual events begin alike: a frame of them costs one question.
    others = {head for head in {bytes(event)[:_HEAD_BYTES] for event in events} if not is_usual(head)}
    if not others:
        return len(events), []
    found = [
        (place, JournalEntry(header.first_seq + skipped + place, header.wall_ns, header.epoch, header.step, event))
        for place, event in enumerate(events)
        if bytes(event)[:_HEAD_BYTES] in others
    ]
    # Of the events before the n-th other one, n are no usual ones.
    return len(events) - len(found), [(place - number, entry) for number, (place, entry) in enumerate(found)]


def records_of(view: SegmentView, frame: Frame, after_seq: int) -> Sequence[JournalEntry | Mark]:
    """Return one frame's records after `after_seq`. A mark of the state at `after_seq` is included."""
    if frame.header.kind == FrameKind.EVENTS:
        return entries_of(view, frame, after_seq) if frame.header.last_seq > after_seq else ()
    # `>=` and not `>`: a capture or hash of exactly this state is what a replay compares its own state with.
    return (mark_of(frame),) if frame.header.last_seq >= after_seq else ()


def walk_records(views: Sequence[SegmentView], after_seq: int, end_offset: int) -> Iterator[JournalEntry | Mark]:
    """Yield all records after `after_seq` in order, up to `end_offset` in the newest of `views`.

    The journal must not be written to meanwhile. Every frame after that position is verified. Raises JournalDamaged at
    the first one that does not verify.
    """
    for view, successor in zip(views, [*views[1:], None], strict=True):
        # Segments that end before `after_seq` are not opened. Their links were checked when the journal was opened.
        if successor is not None and successor.header.previous_last_seq <= after_seq:
            continue
        view.limit = end_offset if successor is None else successor.header.previous_length
        # Start near the position: a fold from a capture must not read the whole segment before it.
        walk = Walk(view, start_near(view, Target("first_seq", after_seq + 1), successor))
        for frame in walk:
            yield from records_of(view, frame, after_seq)
        # A fold must never end early without an error: the state would lack acknowledged events.
        if walk.tail.offset != view.limit:  # safety: fold-ends-at-limit
            raise refusal(view, judge(walk, successor))
        view.close()


def captures_back(views: Iterable[SegmentView], offset: int, chain: bytes) -> Iterator[Capture]:
    """Yield the captures from the frame at `offset` in the first of `views` backwards; `views` are given newest first.

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
    # A piece that does not unpack ends the walk as a flawed frame does: what is before it can be read.
    with contextlib.suppress(JournalDamaged):
        while not isinstance(found := walk.check(), Flaw) and found.header.last_seq <= seq:
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
