"""Entries and marks, which readers of a journal get, and the walk over all segments that yields them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from journal.errors import Damage, JournalDamaged
from journal.format import FrameKind
from journal.frame import Frame, decode_events
from journal.locate import Target, start_near
from journal.scan import judge, refusal
from journal.segment import SegmentView, Walk


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One event. `wall_ns`, `epoch` and `step` are the labels of the batch it was committed in."""

    seq: int
    wall_ns: int
    epoch: int
    step: int
    event: msgspec.Raw


class Mark(msgspec.Struct, frozen=True):
    """A frame without events, at its place in the order: `body` belongs to the state after event `seq`.

    `kind` is a FrameKind, or a plain number for a skippable kind of a newer version.
    """

    kind: FrameKind | int
    seq: int
    body: bytes


def mark_of(frame: Frame) -> Mark:
    """A frame without events as its reader sees it."""
    kind = frame.header.kind
    known = FrameKind(kind) if kind in FrameKind._value2member_map_ else kind
    return Mark(known, frame.header.last_seq, frame.body)


def events_of(view: SegmentView, frame: Frame) -> list[msgspec.Raw]:
    """The events of an EVENTS frame. Raises JournalDamaged if the body is not what it must be."""
    events = decode_events(frame)
    if events is None:
        header = frame.header
        what = f"the frame does not hold the {header.count} msgpack events that its header promises"
        raise JournalDamaged(what, damage=Damage.BODY, path=view.path, offset=header.offset, seq=header.first_seq)
    return events


def entry_of(view: SegmentView, frame: Frame) -> Entry:
    """The entry of an EVENTS frame that holds one. Raises JournalDamaged if the body is not what it must be."""
    header = frame.header
    (event,) = events_of(view, frame)
    return Entry(header.first_seq, header.wall_ns, header.epoch, header.step, event)


def entries_of(view: SegmentView, frame: Frame, after_seq: int) -> list[Entry]:
    """The entries of an EVENTS frame behind `after_seq`. Raises JournalDamaged if the body is not what it must be."""
    header, events = frame.header, events_of(view, frame)
    first, wall_ns, epoch, step = header.first_seq, header.wall_ns, header.epoch, header.step
    skipped = max(0, after_seq + 1 - first)
    return [
        Entry(seq, wall_ns, epoch, step, event) for seq, event in enumerate(events[skipped:], start=first + skipped)
    ]


def records_of(view: SegmentView, frame: Frame, after_seq: int) -> Sequence[Entry | Mark]:
    """What one frame contributes to the records behind `after_seq`; a mark of the state at `after_seq` counts."""
    if frame.header.kind == FrameKind.EVENTS:
        return entries_of(view, frame, after_seq) if frame.header.last_seq > after_seq else ()
    return (mark_of(frame),) if frame.header.last_seq >= after_seq else ()


def walk_records(views: Sequence[SegmentView], after_seq: int, end_offset: int) -> Iterator[Entry | Mark]:
    """All records behind `after_seq` in order, up to `end_offset` in the newest of `views`.

    For journals that nobody writes to meanwhile. Every frame behind the place is verified on the way. Raises
    JournalDamaged at the first that does not verify.
    """
    for view, successor in zip(views, [*views[1:], None], strict=True):
        # Whole segments before the place are not opened: their links were checked when the journal was.
        if successor is not None and successor.header.previous_last_seq <= after_seq:
            continue
        view.limit = end_offset if successor is None else successor.header.previous_length
        walk = Walk(view, start_near(view, Target("first_seq", after_seq + 1), successor))
        for frame in walk:
            yield from records_of(view, frame, after_seq)
        if walk.tail.offset != view.limit:
            raise refusal(view, judge(walk, successor))
        view.close()
