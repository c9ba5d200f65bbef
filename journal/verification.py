"""Verify a journal: read every byte and report whether it is as it was written. Needs no lock, also on a live journal.

Every reader checks checksums, places, order, chain and links. `verify` checks more. Events must decode, and padding and
the rest of a segment must be zero. The running maxima must be right, and seals and tables must agree with the frames.
"""

from __future__ import annotations

import enum
import time
from pathlib import Path
from typing import Final

import msgspec

from journal.columns import Gathering, Tabulation, check_table
from journal.errors import Damage, JournalDamaged, JournalError, JournalMissing, JournalTooNew
from journal.files import OS_FILES, Files
from journal.format import EVENTS, HEADER_BYTES, EntryHeader, FrameKind
from journal.frame import Flaw, Frame
from journal.locate import SealBody, seal_of
from journal.records import events_of
from journal.scan import ScanResult, check_link, refusal, settle
from journal.segment import SegmentName, SegmentView, Tail, Walk, list_segments
from journal.tail import Decision

# How often a torn end of a live journal is read again before it is reported. A write in flight ends in milliseconds.
_IN_FLIGHT_LOOKS: Final = 3
_IN_FLIGHT_PAUSE_S: Final = 0.02
_TAMPERED: Final = frozenset({Damage.CHAIN, Damage.LINK})


class Verdict(enum.StrEnum):
    """The result of reading the whole journal."""

    CLEAN = "clean"
    TORN_TAIL = "torn_tail"  # the remains of one unacknowledged write; the next start moves them to quarantine
    DAMAGED = "damaged"
    TAMPERED = "tampered"  # checksums are right, hash chain or links are not
    TOO_NEW = "too_new"


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """The first problem found, and its place. `damage` names its class."""

    file: Path | None
    offset: int | None
    seq: int | None
    damage: str
    sentence: str


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `verify`. The counts cover the verified part: all, or up to the problem."""

    verdict: Verdict
    run_id: str
    segments: int
    frames: int
    events: int
    bytes: int  # of whole frames and headers, with their padding, as if no segment was packed
    file_bytes: int  # of the files that were read, as they are on disk
    last_seq: int
    chain: str  # hex; the chain value after the last verified frame, to compare with an anchor
    problem: Problem | None = None


def verify(folder: Path, *, files: Files = OS_FILES, tabulation: Tabulation | None = None) -> VerifyReport:
    """Read the whole journal in `folder`. Damage is in the report. Raises JournalMissing, OSError.

    If the writer's `tabulation` is given, the tables of the segments are compared with the events too.
    """
    return Verifier(folder, files, tabulation).run()


class Verifier:
    """One run of `verify`. `stop` is the place and reason at which the newest segment ended; `repair` uses it."""

    def __init__(self, folder: Path, files: Files, tabulation: Tabulation | None = None) -> None:
        self._tabulation = tabulation
        self._gathered: Gathering | None = None
        self.folder = folder
        self._files = files
        # Also the fields of the report, by name.
        self._counts = {"segments": 0, "frames": 0, "events": 0, "bytes": 0, "file_bytes": 0, "last_seq": 0}
        self._run_id = b""
        self._chain = b""
        self._last: EntryHeader | None = None  # the last frame of the segments verified so far
        self._names: list[SegmentName] = []
        self._successor: SegmentView | None = None
        self._following: SegmentView | None = None  # the next segment when the end of this one was last judged
        self.view: SegmentView | None = None
        self.stop: ScanResult | None = None

    def run(self) -> VerifyReport:
        """Verify the whole journal, up to the first problem."""
        # Damage is a result. A journal that is missing or cannot be read is an error.
        verdict, problem = Verdict.CLEAN, None
        try:
            self._verify_all()
        except JournalMissing:
            raise
        except JournalTooNew as error:
            verdict, problem = Verdict.TOO_NEW, _problem(error, "newer")
        except JournalDamaged as error:
            verdict = Verdict.TAMPERED if error.damage in _TAMPERED else Verdict.DAMAGED
            problem = _problem(error, error.damage)
        finally:
            for known in (self._successor, self._following):
                if known is not None:
                    known.close()
        # A torn end is reported as such and not as damage: the journal is in order, and the next start continues.
        if self.stop is not None and self.stop.decision is Decision.TORN and self.view is not None:
            verdict, problem = Verdict.TORN_TAIL, _torn(self.view, self.stop)
        return VerifyReport(
            verdict=verdict, run_id=self._run_id.hex(), chain=self._chain.hex(), problem=problem, **self._counts
        )

    def _verify_all(self) -> None:
        self._names = list_segments(self._files, self.folder)
        if not self._names:
            raise JournalMissing("the journal is empty", path=self.folder, hint="Its writer has not begun it yet.")
        previous: SegmentView | None = None
        view: SegmentView | None = SegmentView(self._files, self._names[0])
        while view is not None:
            self.view = view
            try:
                check_link(previous, view)  # safety: verify-follows-links
                self._verify_segment(view)
            finally:
                view.close()
                if previous is not None:
                    previous.close()
            # Continue with the successor that was known when the end was judged, not with one that appeared since. The
            # segment may have grown since then, and its new successor's link would contradict the older reading.
            previous, view = view, self._following

    def _look_after(self, view: SegmentView) -> SegmentView | None:
        self._following = self._after(view)
        return self._following

    def _after(self, view: SegmentView) -> SegmentView | None:
        """Return the next segment if it exists now."""
        place = view.name.segment_no
        if place >= len(self._names):
            self._names = list_segments(self._files, self.folder)
        if place >= len(self._names):
            return None
        # Open each successor's header once: it is asked at every end of a walk.
        if self._successor is None or self._successor.name != self._names[place]:
            self._successor = SegmentView(self._files, self._names[place])
        # Reading its first frame has opened it again.
        self._successor.close()
        return self._successor

    def _verify_segment(self, view: SegmentView) -> None:
        self._run_id = view.header.run_id
        # Padding is outside every checksum, so it must be checked by itself. Bytes there would be a place to hide
        # data.
        if not view.is_zero(HEADER_BYTES, view.alignment - HEADER_BYTES):  # safety: verify-zeros-after-header
            raise _not_zero(view, HEADER_BYTES, view.alignment, 0)
        # The journal may be live. So the state of the end counts only if it is the same after the rest was read.
        walk, stop, before, walked_to = Walk(view), None, self._last, -1  # safety: maxima-go-on
        self._gathered = Gathering(self._tabulation) if self._tabulation is not None else None
        try:
            while stop is None:
                for frame in walk:
                    _check_maxima(view, frame.header, before)
                    self._verify_frame(walk, frame)
                    before = frame.header
                successor = self._after(view)
                view.limit = successor.header.previous_length if successor is not None else None
                # safety: verify-walks-again-once
                if view.limit is not None and walk.tail.offset > view.limit and walked_to != view.limit:
                    # A frame was read that has been declared void since then, so walk the segment once more. If the
                    # walk passes the end again, the end is inside a frame, and the link is wrong.
                    walk, before, walked_to = Walk(view), self._last, view.limit
                    self._gathered = Gathering(self._tabulation) if self._tabulation is not None else None
                else:
                    if view.limit is not None:
                        # Bytes after the end, even an intact frame, count as bytes that no write put there.
                        walk.flaw = Flaw.NOTHING if walk.tail.offset == view.limit else walk.flaw
                    stop = self._settle(walk, view)
        finally:
            # Also if an error ends the walk: the report says how far the journal verified.
            self._count(walk.tail, view)
        self.stop, self._last = stop, before
        if stop.decision not in (Decision.END, Decision.TORN):  # safety: verify-judges-end
            raise refusal(view, stop)

    def _count(self, tail: Tail, view: SegmentView) -> None:
        self._counts["segments"] += 1
        self._counts["frames"] += tail.frames
        self._counts["events"] += tail.events
        self._counts["bytes"] += tail.offset
        self._counts["file_bytes"] += view.file_bytes()
        self._counts["last_seq"] = tail.last_seq
        # After a problem too: it is the last chain value that can be compared with an anchor.
        self._chain = tail.chain

    def _settle(self, walk: Walk, view: SegmentView) -> ScanResult | None:
        # A part of a write at the end of a live journal is probably in flight. Read it again before reporting it as
        # torn.
        stop = settle(walk, lambda: self._look_after(view))
        for _ in range(_IN_FLIGHT_LOOKS):
            if stop is None or stop.decision is not Decision.TORN:
                return stop
            time.sleep(_IN_FLIGHT_PAUSE_S)
            stop = settle(walk, lambda: self._look_after(view))
        return stop

    def _verify_frame(self, walk: Walk, frame: Frame) -> None:
        view, header = walk.view, frame.header
        end = header.offset + HEADER_BYTES + header.body_bytes
        if not view.is_zero(end, walk.tail.offset - end):  # safety: verify-zeros-as-padding
            raise _not_zero(view, end, walk.tail.offset, header.last_seq)
        # Decode only to count the events. The journal does not verify what an event means.
        if header.kind == EVENTS:
            events = events_of(view, frame)  # safety: verify-decodes-events
            if self._gathered is not None:
                self._gathered.add(map(bytes, events), header.first_seq, header.offset)
        # Derived frames are compared with what they were made from. A wrong one loses no event, but readers would be
        # misled.
        elif header.kind == FrameKind.STEP_TABLE:
            check_table(view, frame, self._gathered, self._tabulation)  # safety: verify-checks-tables
        elif header.kind == FrameKind.SEAL:
            _check_seal(walk, frame)


def _check_maxima(view: SegmentView, header: EntryHeader, before: EntryHeader | None) -> None:
    # The first frame of a segment continues from the last frame of the segment before. The very first starts at zero.
    wall_ns = epoch = step = 0
    if before is not None:
        wall_ns, epoch, step = before.wall_ns_max, before.epoch_max, before.step_max
    if header.kind == EVENTS:
        # This runs for every frame, and calls of `max` would cost more than the rest of the function.
        wall_ns = header.wall_ns if header.wall_ns > wall_ns else wall_ns  # noqa: FURB136
        epoch = header.epoch if header.epoch > epoch else epoch  # noqa: FURB136
        step = header.step if header.step > step else step  # noqa: FURB136
    # safety: verify-checks-maxima
    if header.wall_ns_max != wall_ns or header.epoch_max != epoch or header.step_max != step:
        what = "the running maxima of time, epoch and step are wrong"
        raise JournalDamaged(what, damage=Damage.INDEX, path=view.path, offset=header.offset, seq=header.first_seq)


def _check_seal(walk: Walk, frame: Frame) -> None:
    tail, first_seq, chain = walk.tail, walk.view.header.first_seq, frame.header.previous_chain
    expected = SealBody(first_seq, tail.last_seq, tail.frames - 1, tail.events, chain, tail.index)
    if seal_of(walk.view, frame) != expected:  # safety: verify-checks-seals
        what = "the seal disagrees with the frames of its segment"
        raise JournalDamaged(what, damage=Damage.INDEX, path=walk.view.path, offset=frame.header.offset)


def _not_zero(view: SegmentView, start: int, end: int, seq: int) -> JournalDamaged:
    padding = view.peek(start, end - start)
    offset = start + len(padding) - len(padding.lstrip(b"\0"))
    what = "padding that must be zero is not"
    return JournalDamaged(
        what, damage=Damage.PADDING, path=view.path, offset=offset, seq=seq, hint="No event is affected."
    )


def _problem(error: JournalError, damage: str) -> Problem:
    return Problem(file=error.path, offset=error.offset, seq=error.seq, damage=damage, sentence=str(error))


def _torn(view: SegmentView, stop: ScanResult) -> Problem:
    sentence = (
        f"{stop.case.sentence} (file {view.path}, offset {stop.tail.offset}, sequence number {stop.tail.next_seq}). "
        "The next start moves it to quarantine and continues; `repair` does the same."
    )
    return Problem(file=view.path, offset=stop.tail.offset, seq=stop.tail.next_seq, damage="torn", sentence=sentence)
