"""Writing frames one behind the other: when to go on in the next segment, and what to do when a write fails.

Order of a commit: frame the batch, one `pwrite` of whole blocks on an O_DSYNC descriptor, then, and only then, count the
events as there. Order of a rotation: seal, take a spare, write its whole head (header, capture) in one write, rename,
sync the folder, switch. A segment under its final name is therefore always complete at its head.

When a write fails, whatever the reason:

* That descriptor is never written or synced again. What the failed write left behind is unknown, and a second try that
  succeeds would prove nothing: the kernel may have dropped the first one's pages and forgotten the error.
* The batch goes into the next segment, behind a POISON frame that declares the failed bytes void.
* If that fails too, or there is no space for a next segment, the journal freezes: every later call raises
  JournalFailed at once. Nothing acknowledged is lost, and a new start can go on from there.

A full disk alone is no failure: the next segment's file is made before this one is sealed, and where there is no space for
it, JournalFull is raised and nothing has changed.

Invariants:

* `current.tail` stands behind the last frame that is durable. It moves after a write returned, never before.
* Everything behind `current.tail` is zero or the remains of a write that failed, and then nothing is written there.
* There is always room behind the tail for a watermark and a seal.
"""

from __future__ import annotations

import contextlib
import errno as errno_codes
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from journal.columns import Gathering, Tabulation
from journal.direct import DirectWrites, FrameBuffer, write_frames
from journal.errors import BatchRefused, JournalFailed, JournalFull
from journal.files import Files
from journal.format import BODY_BYTES_MAX, EntryFlag, FrameKind, SegmentHeader
from journal.frame import frame_bytes
from journal.packing import Packer
from journal.rotation import Current, RenameFailed, SegmentMaker, next_header
from journal.spare import SpareMaker
from journal.writing import CLEAN_STOP, Batch, Fault, Head, Stamp, compose, seal_body

# Errors that making yet another file cannot cure. (EFBIG is a limit on file size: the next one would meet it too.)
_NO_SPACE: Final = frozenset({errno_codes.ENOSPC, errno_codes.EDQUOT, errno_codes.EFBIG})
_MAY_BE_FREED: Final = frozenset({errno_codes.ENOSPC, errno_codes.EDQUOT})
# A second failure in a row is not a bad sector any more but a bad disk.
_FAILURES_MAX: Final = 1
# A run's first events and the closing of a segment take a tenth of it.
_FIRST_SEGMENT_BYTES_MIN: Final = 1 << 18
_REASON_CHARACTERS_MAX: Final = 1024


class Appender:
    """Appends frames to the journal in `folder`. One thread; one write in flight.

    `base` is the header every new segment starts from, `capture` gives the state at its head, `reached` hears of the
    points named at `Journal.open`.
    """

    def __init__(
        self,
        files: Files,
        folder: Path,
        base: SegmentHeader,
        capture: Callable[[], bytes],
        *,
        reached: Callable[[str], None],
        tabulation: Tabulation | None = None,
    ) -> None:
        self._tabulation = tabulation
        self._files = files
        self._folder = folder
        self._base = base
        self._capture = capture
        self._reached = reached
        self._failures_in_row = 0
        self._buffer = FrameBuffer()
        self.direct = DirectWrites(files)
        self.current: Current | None = None
        self.spares = SpareMaker(files, folder, base.segment_bytes, base.alignment)
        self.packer = Packer(files, folder)
        self.failure: JournalFailed | None = None
        self.poisoned = 0

    @property
    def last_seq(self) -> int:
        """The last durable sequence number."""
        return self.current.tail.last_seq if self.current is not None else 0

    def put(self, batch: Batch, stamp: Stamp, events: Sequence[bytes] = ()) -> int:
        """Make one batch durable; returns its first sequence number. Raises BatchRefused, JournalFull, JournalFailed.

        `events` are what it holds, for the segment's table.
        """
        if self.failure is not None:
            self.refuse()
        length = len(batch.body)
        if length > BODY_BYTES_MAX:
            raise BatchRefused(f"a batch takes at most {BODY_BYTES_MAX} bytes, not {length}", path=self._folder)
        current = self.current
        if current is None or not current.has_room(length, len(events)):
            current = self.advance(length, stamp)
        while True:
            first_seq = current.tail.next_seq
            try:
                self._write(current, batch, stamp)
            except OSError as error:
                # The same events get the same numbers in the next segment. `advance` ends the loop by raising when
                # this was the second failure in a row.
                current = self.advance(length, stamp, error)
            else:
                self._failures_in_row = 0
                if current.gathered is not None:
                    current.gathered.add(events)
                return first_seq

    def begin(self, stamp: Stamp) -> None:
        """Make the first segment of a new journal. Raises as `put`.

        On a disk too small for a segment of full size a smaller one is made, down to 256 KiB: the run can then
        record that there is no space, and answer. The next segment has its full size again.
        """
        size = whole = self._base.segment_bytes
        while True:
            try:
                self.advance(0, stamp)
            except JournalFull:
                size //= 2
                if size < _FIRST_SEGMENT_BYTES_MIN:
                    raise
                self._resize(size)
            else:
                break
        self._resize(whole)

    def _resize(self, size: int) -> None:
        """Make the segments to come `size` bytes long, in whole blocks. Only while there is no spare thread."""
        size = size // self._base.alignment * self._base.alignment
        self._base = msgspec.structs.replace(self._base, segment_bytes=size)
        self.spares.resize(size)

    def _write(self, current: Current, batch: Batch, stamp: Stamp) -> None:
        alignment = current.header.alignment
        room = self._buffer.room(frame_bytes(len(batch.body), alignment))
        try:
            length, header, chain = compose(room, current.header, current.tail, batch, stamp)
        except struct.error as error:
            # Found before anything was written, so the journal goes on.
            raise BatchRefused(f"a label is outside its field: {stamp}: {error}", path=self._folder) from error
        try:
            self._reached("commit")
            write_frames(self._files, current.descriptor, room[:length], current.tail.offset, direct=current.direct)
            self._reached("committed")
        except OSError:
            raise
        except BaseException as error:
            # Interrupted between the write and the count of it: what is on disk is not known any more. Writing the
            # next batch over it could tear a frame that a reader has already seen.
            self.freeze("a write was interrupted", error)
            raise
        current.tail.advance(header, chain, alignment)

    def advance(self, body_bytes: int, stamp: Stamp, error: OSError | None = None) -> Current:
        """Go on in the next segment, because this one is full or, given an error, because it failed."""
        # Captured before the seal: if that raises, the segment is as it was.
        capture = self._captured()
        if error is None:
            self._reserve(body_bytes, capture)
        fault = self._poison(error) if error is not None else self._seal(stamp)
        while True:
            if self._failures_in_row > _FAILURES_MAX:
                raise self.freeze("the journal failed twice in a row", error)
            try:
                return self._switch(body_bytes, stamp, capture, fault)
            except OSError as second:
                # Nothing has its name yet, so a second file may be tried, unless it is space that is missing.
                self._failures_in_row += 1
                error = second
                if second.errno in _NO_SPACE:
                    raise self.freeze("there is no space for the next segment", second) from second
            except JournalFailed:
                raise
            except BaseException as interruption:
                # `current` is still the old segment, sealed or failed: nothing may be written there.
                self.freeze("a rotation was interrupted", interruption)
                raise

    def _reserve(self, body_bytes: int, capture: bytes) -> None:
        """Have the next segment's file before this one is sealed: where space is missing, nothing has changed yet."""
        size = next_header(self._base, self.current, body_bytes, len(capture)).segment_bytes
        try:
            self.spares.reserve(size)
        except OSError as error:
            # Any other error shows again when the file is made, and is judged there.
            if error.errno in _MAY_BE_FREED:
                what = f"there is no space for the next segment: {error}"
                raise JournalFull(what, errno=error.errno, path=self._folder, seq=self.last_seq) from error

    def _switch(self, body_bytes: int, stamp: Stamp, capture: bytes, fault: Fault | None) -> Current:
        before = self.current
        base = msgspec.structs.replace(self._base, created_wall_ns=stamp.wall_ns)
        header = next_header(base, before, body_bytes, len(capture))
        own = self.own_stamp(stamp.wall_ns, stamp.mono_ns)
        head = Head(header, before.tail if before is not None else None, fault, capture, own)
        try:
            maker = SegmentMaker(self._files, self.spares, self._folder, self.direct, self._buffer, self._reached)
            current = maker.create(head)
        except RenameFailed as failed:
            # The name may be on disk or not. A second file of that number could contradict the first one.
            raise self.freeze("the next segment cannot be given its name", failed.error) from failed
        if before is not None:
            self._close_quietly(before.descriptor)
        if self._tabulation is not None:
            current.gathered = Gathering(self._tabulation)
        self.current = current
        self.packer.look()
        return current

    def _seal(self, stamp: Stamp) -> Fault | None:
        current = self.current
        # A segment found sealed at the start, by a crash between seal and switch, needs no second seal.
        if current is None or current.tail.sealed:
            return None
        own = self.own_stamp(stamp.wall_ns, stamp.mono_ns)
        try:
            table = current.gathered.body() if current.gathered is not None else None
            # A write of its own: two frames in one write could reach the disk the second one first.
            if table is not None and current.fits(len(table)):
                self._write(current, Batch(int(FrameKind.STEP_TABLE), 0, table, int(EntryFlag.SKIPPABLE)), own)
            seal = Batch(int(FrameKind.SEAL), 0, seal_body(current.tail, current.header.first_seq))
            self._write(current, seal, own)
        except OSError as error:
            return self._poison(error)
        return None

    def _poison(self, error: OSError) -> Fault | None:
        """Count the failure, and note where the valid bytes of the current segment end."""
        self._failures_in_row += 1
        self.poisoned += 1
        if self.current is None:
            return None
        if self.current.direct:
            self.direct.note_failure(error)
        segment_no, tail = self.current.header.segment_no, self.current.tail
        reason = str(error)[:_REASON_CHARACTERS_MAX]
        return Fault(segment_no, tail.offset, tail.last_seq, error.errno or 0, reason)

    def _captured(self) -> bytes:
        try:
            capture = self._capture()
        except BaseException as error:
            # A state that cannot be captured is a defect of the caller's; without it no segment may begin.
            self.freeze("the state at the head of the next segment cannot be captured", error)
            raise
        if len(capture) > BODY_BYTES_MAX:
            large = OverflowError(f"a capture of {len(capture)} bytes; the format allows {BODY_BYTES_MAX}")
            raise self.freeze("the captured state is too large", large)
        return capture

    def watermark(self) -> None:
        """Prove that everything so far was acknowledged, at an orderly close."""
        if self.failure is not None or self.current is None:
            return
        last = self.current.tail.last
        # A seal is no less a proof, and nothing may follow it.
        if last is None or last.kind in (FrameKind.WATERMARK, FrameKind.SEAL):
            return
        # Evidence, not data: where it cannot be written, nothing is lost but the proof.
        with contextlib.suppress(OSError):
            batch = Batch(int(FrameKind.WATERMARK), 0, CLEAN_STOP)
            self._write(self.current, batch, self.own_stamp(last.wall_ns, last.mono_ns))

    def own_stamp(self, wall_ns: int, mono_ns: int) -> Stamp:
        """The labels of a frame of the journal's own: epoch and step are those of the frame before."""
        last = self.current.tail.last if self.current is not None else None
        return Stamp(last.epoch if last else 0, last.step if last else 0, wall_ns, mono_ns)

    def freeze(self, what: str, cause: BaseException | None) -> JournalFailed:
        """From now on every call raises the error that this returns."""
        code = getattr(cause, "errno", None) or 0
        reason = f"{what}: {cause}"
        self.failure = JournalFailed(what, errno=code, reason=reason, path=self._folder, seq=self.last_seq)
        return self.failure

    def refuse(self) -> None:
        """Raise the failure, if there was one; a new error each time."""
        if self.failure is not None:
            raise self.failure.again()

    def release(self) -> None:
        """Close the segment. What is left of the spare thread and its file is `spares.stop()`'s."""
        if self.current is not None:
            self._close_quietly(self.current.descriptor)

    def _close_quietly(self, descriptor: int) -> None:
        # Everything acknowledged was durable before; an error on close has nothing left to say.
        with contextlib.suppress(OSError):
            self._files.close(descriptor)
