"""The entries and marks that readers of a journal get, and the walk over all segments that yields them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from journal.errors import Damage, JournalDamaged
from journal.format import FrameKind
from journal.frame import Frame, decode_events
from journal.locate import Target, start_near
from journal.scan import judge, refusal
from journal.segment import SegmentView, Walk


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
    skipped = max(0, after_seq + 1 - first)
    return [
        JournalEntry(seq, wall_ns, epoch, step, event)
        for seq, event in enumerate(events[skipped:], start=first + skipped)
    ]


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
