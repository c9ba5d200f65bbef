"""Gathering the facts of `journal.tail`, and the checks that bind segments to each other. Reads only.

Opening reads the newest segments whole, up to a bound, and of every older one its header, its link and its last frame:
so the cost of an open does not grow with the journal. What is folded is verified as it is read; `verify` reads
everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from journal import sentences
from journal.errors import COPIED_LIVE, RESTORE, Damage, JournalDamaged, JournalError, JournalTooNew
from journal.format import BODY_BYTES_MAX, ENTRY_MAGIC, NO_CHAIN, FrameKind
from journal.frame import Flaw, Frame, frame_bytes
from journal.segment import SegmentView, Tail, Walk
from journal.tail import Case, Decision, TailFacts, decide

_CHUNK_BYTES: Final = 1 << 20
_ZEROS: Final = bytes(_CHUNK_BYTES)


class Rest(msgspec.Struct, frozen=True):
    """What lies from X to the end of the file."""

    nonzero_end: int  # just behind the last byte that is not zero; X if there is none
    later_intact: bool


class Stop(msgspec.Struct, frozen=True):
    """Where reading a segment stopped, and what that means."""

    tail: Tail
    case: Case
    nonzero_end: int

    @property
    def decision(self) -> Decision:
        """The decision of the case."""
        return self.case.decision


def examine_rest(view: SegmentView, tail: Tail, ahead_bytes: int | None = None) -> Rest:
    """Read from the tail to the end of the file: where it stops being zero, and whether a later frame is intact.

    With `ahead_bytes` no farther than that: enough to see that nothing follows at once, not that nothing follows.
    """
    nonzero_end, later = tail.offset, False
    # Beyond the length it was made with, that length is the fault (`resized`). A file with holes can claim terabytes.
    end = min(view.size, view.header.segment_bytes)
    if ahead_bytes is not None:
        end = min(end, tail.offset + ahead_bytes)
    for at in range(tail.offset, end, _CHUNK_BYTES):
        # Read around the window, which the walk still needs; one memory compare per chunk of zeros.
        chunk = view.read(at, min(_CHUNK_BYTES, end - at))
        if chunk == _ZEROS[: len(chunk)]:
            continue
        nonzero_end = at + len(chunk.rstrip(b"\0"))
        later = later or _holds_later_frame(view, tail, chunk, at)
    return Rest(nonzero_end, later)


def _holds_later_frame(view: SegmentView, tail: Tail, chunk: bytes, chunk_at: int) -> bool:
    # An intact header is proof enough, body or no body: in its own place it was written after X was acknowledged; in
    # another it is what was to be at X, or behind, and a disk has put it elsewhere. A torn write leaves its header at X.
    found = chunk.find(ENTRY_MAGIC)
    while found >= 0:
        offset = chunk_at + found
        if offset > tail.offset and offset % view.alignment == 0:
            header = view.own_header_at(offset)
            if not isinstance(header, Flaw) and header.first_seq >= tail.next_seq:
                return True
        found = chunk.find(ENTRY_MAGIC, found + 1)
    return False


def _reach(view: SegmentView, tail: Tail) -> int:
    # How far the one write in flight at X can have left bytes: its own length, where its header tells it.
    header = view.header_at(tail.offset)
    body_bytes = BODY_BYTES_MAX if isinstance(header, Flaw) else header.body_bytes
    return tail.offset + frame_bytes(body_bytes, view.alignment)


def judge(walk: Walk, successor: SegmentView | None, ahead_bytes: int | None = None) -> Stop:
    """What the place means at which `walk` has stopped. `successor` is the next segment, if there is one.

    The whole rest of the segment is read, or only `ahead_bytes` of it.
    """
    # Every fact is gathered, also those that cannot matter in this case: the table decides, not this function.
    view, tail = walk.view, walk.tail
    rest = examine_rest(view, tail, ahead_bytes)
    facts = TailFacts(
        newer=walk.flaw is Flaw.NEWER,
        resized=view.size != view.header.segment_bytes,
        # A header that verifies and claims more than its file holds was never written by us either.
        misplaced=walk.flaw in (Flaw.MISPLACED, Flaw.ORDER, Flaw.BEYOND),
        unchained=walk.flaw is Flaw.CHAIN,
        newest=successor is None,
        linked_end=successor is not None and successor.header.previous_length == tail.offset,
        voided=successor is not None and declares_void(successor),
        rest_zero=rest.nonzero_end == tail.offset,
        sealed=tail.sealed,
        later_intact=rest.later_intact,
        stray=rest.nonzero_end > _reach(view, tail),
    )
    return Stop(tail, decide(facts), rest.nonzero_end)


def declares_void(view: SegmentView) -> bool:
    """Whether a segment begins with a POISON frame, which declares the rest of its predecessor void."""
    first = view.frame_at(view.alignment)
    return not isinstance(first, Flaw) and first.header.kind == FrameKind.POISON


def scan(
    view: SegmentView, successor: SegmentView | None = None, heed: Callable[[SegmentView, Frame], None] | None = None
) -> Stop:
    """Walk a segment to where it stops, and judge that place; `heed` is shown every frame."""
    walk = Walk(view)
    for frame in walk:
        if heed is not None:
            heed(view, frame)
    return judge(walk, successor)


def settle(walk: Walk, successor: Callable[[], SegmentView | None], ahead_bytes: int | None = None) -> Stop | None:
    """As `judge`, on a journal that may be written to at this moment; None if the walk can simply go on.

    The writer may have written X, and more behind it, between two reads of ours. So what was found counts only if X
    still does not hold the next frame when the rest has been read.
    """
    following = successor()
    stop = judge(walk, following, ahead_bytes)
    if stop.decision is Decision.END and following is not None:
        return stop
    # The order matters: the rest was read first, X is looked at last.
    walk.view.refresh()
    if not isinstance(walk.look(), Flaw):
        return None
    return stop if (following is None) == (successor() is None) else None


def refusal(view: SegmentView, stop: Stop) -> JournalError:
    """The error for a stop that is no end: what, where, and what remains possible."""
    tail = stop.tail
    if stop.decision is Decision.TOO_NEW:
        hint = "Use the version of the program that wrote it, or a later one."
        return JournalTooNew(stop.case.sentence, path=view.path, offset=tail.offset, seq=tail.next_seq, hint=hint)
    damage = stop.case.damage or Damage.FRAME
    # A copier that is overtaken by the writer takes a later frame without the one at X, or its body without its head.
    hint = f"{RESTORE} {COPIED_LIVE}" if damage in (Damage.FRAME, Damage.STRAY_BYTES) else RESTORE
    what, seq = stop.case.sentence, tail.next_seq
    return JournalDamaged(what, damage=damage, path=view.path, offset=tail.offset, seq=seq, hint=hint)


def check_link(previous: SegmentView | None, view: SegmentView) -> None:
    """Raise JournalDamaged unless `view`'s header follows from `previous`: number, length, last event and chain."""
    header = view.header
    if previous is None:
        if header.segment_no != 1 or header.previous_chain != NO_CHAIN:
            raise _broken_link(view, sentences.FIRST_LINK)
        return
    if (header.previous_segment_no, header.run_id) != (previous.header.segment_no, previous.header.run_id):
        raise _broken_link(view, sentences.OTHER_LINK)
    if header.first_seq != header.previous_last_seq + 1:
        raise _broken_link(view, sentences.GAP_LINK)
    # Its last frame stands for all of it: the chain value behind that one depends on every frame before.
    last = previous.frame_at(header.previous_last_offset)
    if isinstance(last, Flaw):
        at, seq, hint = header.previous_last_offset, header.previous_last_seq, f"{RESTORE} {COPIED_LIVE}"
        raise JournalDamaged(sentences.FRAME, damage=Damage.FRAME, path=previous.path, offset=at, seq=seq, hint=hint)
    end = header.previous_last_offset + frame_bytes(last.header.body_bytes, previous.alignment)
    found = (end, last.header.last_seq, last.chain)
    if found != (header.previous_length, header.previous_last_seq, header.previous_chain):
        raise _broken_link(view, sentences.LINK)


def _broken_link(view: SegmentView, what: str) -> JournalDamaged:
    hint = f"{RESTORE} {COPIED_LIVE}"
    return JournalDamaged(what, damage=Damage.LINK, path=view.path, offset=0, seq=view.header.first_seq, hint=hint)
