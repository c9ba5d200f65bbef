"""Gather the facts for the table in `journal.tail`, and check the links between segments. Reads only.

Opening reads the newest segments completely, up to a bound. Of every older one it reads the header, the link and the
last frame. So the cost of opening hardly grows with the journal. A fold verifies the frames that it reads; `verify`
reads all frames.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from journal.errors import COPIED_LIVE, RESTORE, UNREADABLE, Damage, JournalDamaged, JournalError, JournalTooNew
from journal.format import BODY_BYTES_MAX, ENTRY_MAGIC, NO_CHAIN, FrameKind
from journal.frame import Flaw, Frame, frame_bytes
from journal.segment import SegmentView, Tail, Walk
from journal.tail import Case, Decision, TailFacts, decide

_CHUNK_BYTES: Final = 1 << 20
_ZEROS: Final = bytes(_CHUNK_BYTES)


class ScanResult(msgspec.Struct, frozen=True):
    """The place where reading a segment stopped, and what that means."""

    tail: Tail
    case: Case
    nonzero_end: int

    @property
    def decision(self) -> Decision:
        """The decision that the case leads to."""
        return self.case.decision


def examine_rest(view: SegmentView, tail: Tail, ahead_bytes: int | None = None) -> tuple[int, bool]:
    """Read from the tail to the end of the file. Return where its nonzero bytes end, and whether a later frame follows.

    The first value is the tail's offset if all bytes are zero. With `ahead_bytes`, read no farther than that. This
    shows that no frame follows soon, not that none follows at all.
    """
    nonzero_end, later = tail.offset, False
    # A file longer than it was created is a fault by itself (`resized`), so its extra bytes are not read. A file with
    # holes can claim terabytes.
    end = min(view.size, view.header.segment_bytes)
    if ahead_bytes is not None:
        end = min(end, tail.offset + ahead_bytes)
    # From the tail on in all cases, also if X holds a readable header: a later frame proves that X was acknowledged.
    for at in range(tail.offset, end, _CHUNK_BYTES):
        # Do not use the window, which the walk still needs. A chunk of zeros costs one comparison of memory.
        chunk = view.read(at, min(_CHUNK_BYTES, end - at))
        if chunk == _ZEROS[: len(chunk)]:
            continue
        nonzero_end = at + len(chunk.rstrip(b"\0"))
        later = later or _holds_later_frame(view, tail, chunk, at)  # safety: later-frame-proves-earlier
    return nonzero_end, later


def _holds_later_frame(view: SegmentView, tail: Tail, chunk: bytes, chunk_at: int) -> bool:
    # An intact header is enough proof, even without its body. In its own place it was written after X was acknowledged.
    # In another place the disk misplaced a frame of X or of a later offset. A torn write leaves its header only at X.
    found = chunk.find(ENTRY_MAGIC)
    # A frame starts at a multiple of the alignment. The magic number at another offset is part of an event's bytes.
    while found >= 0:
        offset = chunk_at + found
        if offset > tail.offset and offset % view.alignment == 0:
            header = view.own_header_at(offset)  # safety: misplaced-last-frame-not-torn
            # Sectors that a torn write did not reach may show an older frame. It proves nothing about X.
            if not isinstance(header, Flaw) and header.first_seq >= tail.next_seq:  # safety: older-frame-proves-nothing
                return True
        found = chunk.find(ENTRY_MAGIC, found + 1)
    return False


def _reach(view: SegmentView, tail: Tail) -> int:
    # How far the one write in flight at X can have left bytes: its own length, or the longest frame if its header is
    # unreadable.
    header = view.header_at(tail.offset)
    body_bytes = BODY_BYTES_MAX if isinstance(header, Flaw) else header.body_bytes
    return tail.offset + frame_bytes(body_bytes, view.alignment)


def judge(walk: Walk, successor: SegmentView | None, ahead_bytes: int | None = None) -> ScanResult:
    """Return what the place means at which `walk` has stopped. `successor` is the next segment, if there is one.

    Reads the whole rest of the segment, or only `ahead_bytes` of it.
    """
    # Gather every fact, even if another one already decides. The table decides, not this function.
    view, tail = walk.view, walk.tail
    nonzero_end, later_intact = examine_rest(view, tail, ahead_bytes)
    facts = TailFacts(  # safety: segment-ends-at-link
        newer=walk.flaw is Flaw.NEWER,  # safety: newer-frame-is-no-damage
        resized=view.size != view.header.segment_bytes,  # safety: file-has-its-length
        # The writer never writes a frame that is longer than its file, so such a header was misplaced too.
        misplaced=walk.flaw in (Flaw.MISPLACED, Flaw.ORDER, Flaw.BEYOND),  # safety: misplaced-frame-is-damage
        unchained=walk.flaw is Flaw.CHAIN,  # safety: broken-chain-is-damage
        newest=successor is None,
        linked_end=successor is not None and successor.header.previous_length == tail.offset,
        voided=successor is not None and declares_void(successor),
        rest_zero=nonzero_end == tail.offset,
        sealed=tail.sealed,  # safety: nothing-after-seal
        later_intact=later_intact,
        stray=nonzero_end > _reach(view, tail),  # safety: stray-bytes-are-damage
    )
    return ScanResult(tail, decide(facts), nonzero_end)


def declares_void(view: SegmentView) -> bool:
    """Return whether a segment begins with a POISON frame, which declares the rest of its predecessor void."""
    # Verified like any frame: a forged POISON frame would hide acknowledged frames of the predecessor.
    first = view.frame_at(view.alignment)
    return not isinstance(first, Flaw) and first.header.kind == FrameKind.POISON  # safety: only-poison-voids-rest


def scan(
    view: SegmentView, successor: SegmentView | None = None, heed: Callable[[SegmentView, Frame], None] | None = None
) -> ScanResult:
    """Walk a segment to the place where its frames stop, and judge that place. Calls `heed` with every frame."""
    walk = Walk(view)
    for frame in walk:
        if heed is not None:
            heed(view, frame)
    return judge(walk, successor)


def settle(
    walk: Walk, successor: Callable[[], SegmentView | None], ahead_bytes: int | None = None
) -> ScanResult | None:
    """Judge like `judge` while a writer may be active. Return None if the walk can simply continue.

    The writer may write X and later frames between two of our reads. So the result counts only if X still does not
    contain the next frame after the rest was read.
    """
    # Asked twice, before and after reading: a segment that appears in between changes what the end means.
    following = successor()
    stop = judge(walk, following, ahead_bytes)
    if stop.decision is Decision.END and following is not None:
        return stop
    # The order matters: read the rest first and X last. If X is still empty then, nothing before X's write was missed.
    walk.view.refresh()
    if not isinstance(walk.check(), Flaw):  # safety: live-write-read-twice
        return None
    # A segment that appeared meanwhile changes the facts: judge again with it.
    return stop if (following is None) == (successor() is None) else None


def refusal(view: SegmentView, stop: ScanResult) -> JournalError:
    """Return the error for a stop that is not the end: what, where, and what is still possible."""
    tail = stop.tail
    if stop.decision is Decision.TOO_NEW:
        hint = "Use the version of the program that wrote it, or a later one."
        return JournalTooNew(stop.case.sentence, path=view.path, offset=tail.offset, seq=tail.next_seq, hint=hint)
    damage = stop.case.damage or Damage.FRAME
    # A program that copies a live journal may copy a later frame but not the one at X, or a body without its header.
    hint = f"{RESTORE} {COPIED_LIVE}" if damage in (Damage.FRAME, Damage.STRAY_BYTES) else RESTORE
    what, seq = stop.case.sentence, tail.next_seq
    return JournalDamaged(what, damage=damage, path=view.path, offset=tail.offset, seq=seq, hint=hint)


def check_link(previous: SegmentView | None, view: SegmentView) -> None:
    """Raise JournalDamaged unless `view`'s header follows from `previous`: number, length, last event and chain."""
    header = view.header
    if previous is None:
        if header.segment_no != 1 or header.previous_chain != NO_CHAIN:  # safety: first-has-no-predecessor
            raise _broken_link(view, "the first segment names a predecessor")
        return
    # The hash chain alone does not show this: a segment of another run may be chained correctly within that run.
    # safety: segment-follows-predecessor
    if (header.previous_segment_no, header.run_id) != (previous.header.segment_no, previous.header.run_id):
        raise _broken_link(view, "the segment follows another predecessor, or belongs to another run")
    if header.first_seq != header.previous_last_seq + 1:  # safety: segment-numbers-go-on
        raise _broken_link(view, "the segment's first sequence number does not follow the last one of its predecessor")
    # Checking the predecessor's last frame is enough: the chain value after it depends on every frame before it.
    last = previous.frame_at(header.previous_last_offset)
    if isinstance(last, Flaw):
        at, seq, hint = header.previous_last_offset, header.previous_last_seq, f"{RESTORE} {COPIED_LIVE}"
        raise JournalDamaged(UNREADABLE, damage=Damage.FRAME, path=previous.path, offset=at, seq=seq, hint=hint)
    end = header.previous_last_offset + frame_bytes(last.header.body_bytes, previous.alignment)
    found = (end, last.header.last_seq, last.chain)
    # safety: link-is-predecessors-end
    if found != (header.previous_length, header.previous_last_seq, header.previous_chain):
        raise _broken_link(view, "the segment's link does not match the end of its predecessor")


def _broken_link(view: SegmentView, what: str) -> JournalDamaged:
    hint = f"{RESTORE} {COPIED_LIVE}"
    return JournalDamaged(what, damage=Damage.LINK, path=view.path, offset=0, seq=view.header.first_seq, hint=hint)
