"""Append frames to the newest segment, switch to the next segment, and handle failed writes.

A commit composes the frame, writes whole blocks with one `pwrite` on an O_DSYNC descriptor, and then counts the events
as durable. A rotation first seals the segment. Then it writes the next segment's whole head (header and capture) to a
spare file in one write. It renames the spare, syncs the folder, and switches. A segment under its final name therefore
always has a complete head.

If a write fails, for any reason:

* The appender never writes to that descriptor again and never syncs it again. The bytes on disk are unknown. A second
  attempt that succeeds would prove nothing, because the kernel may have dropped the pages and forgotten the error.
* The batch goes into the next segment, after a POISON frame that declares the failed bytes void.
* If that fails too, or the disk has no space for another segment, the journal freezes. Every later call raises
  JournalFailed at once. No acknowledged event is lost, and a new start can continue from there.

A full disk alone is not a failure. The next segment's file is created before this segment is sealed. If there is no
space for it, `put` raises JournalFull and nothing has changed.

Invariants:

* `current.tail` points after the last durable frame. It moves after a write has returned, never before.
* All bytes after `current.tail` are zero, or they are the remains of a failed write. In that case nothing is written
  there.
* There is always room after the tail for a watermark and a seal.
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
from journal.rotation import Current, Growth, next_header
from journal.segment import Tail, segment_file_name
from journal.spare import SpareMaker
from journal.writing import CLEAN_STOP, Batch, Fault, Stamp, compose, compose_head, seal_body

# Another file cannot cure these errors. EFBIG is a limit on file size: the next segment would meet it too.
_NO_SPACE: Final = frozenset({errno_codes.ENOSPC, errno_codes.EDQUOT, errno_codes.EFBIG})
# Of these, only a lack of space can end while the process lives. EFBIG needs another configuration, so it is a
# failure.
_MAY_BE_FREED: Final = frozenset({errno_codes.ENOSPC, errno_codes.EDQUOT})
# One failure may be a bad sector. A second one in a row means that the disk is bad.
_FAILURES_MAX: Final = 1
# The plan for a journal that takes no more events soon: a segment with just enough room for its head.
_LEAST: Final = Growth(0, 0)
# The reason goes into the POISON frame, which has a fixed share of the new segment (`rotation._POISON_BYTES_MAX`).
_REASON_CHARACTERS_MAX: Final = 1024


class Appender:
    """Append frames to the journal in `folder`. Used by one thread, with one write in flight.

    `base` is the header from which every new segment's header is made; `growth` plans its length. `capture` returns the
    state for a segment's head. `reached` is called at the points named in `Journal.open`.
    """

    def __init__(
        self,
        files: Files,
        folder: Path,
        base: SegmentHeader,
        growth: Growth,
        capture: Callable[[], bytes],
        *,
        reached: Callable[[str], None],
        tabulation: Tabulation | None = None,
    ) -> None:
        self._tabulation = tabulation
        self._growth = growth
        self._files = files
        self._folder = folder
        self._base = base
        self._capture = capture
        self._reached = reached
        # Failures without a good write between them: the first costs a segment, the second freezes the journal.
        self._failures_in_row = 0
        self._buffer = FrameBuffer()
        self.direct = DirectWrites(files)
        # None until `begin` or `go_on_in` gives a segment; the only descriptor to which frames are written.
        self.current: Current | None = None
        self.spares = SpareMaker(files, folder, growth.planned(1), base.alignment)
        self.packer = Packer(files, folder)
        self.failure: JournalFailed | None = None
        self.poisoned = 0

    @property
    def last_seq(self) -> int:
        """The last durable sequence number."""
        return self.current.tail.last_seq if self.current is not None else 0

    def put(self, batch: Batch, stamp: Stamp, events: Sequence[bytes] = ()) -> int:
        """Make one batch durable and return its first sequence number. Raises BatchRefused, JournalFull, JournalFailed.

        `events` are the events of the batch, for the segment's table.
        """
        self.refuse()
        # Check the length before anything changes: a refused batch must not cause a rotation.
        length = len(batch.body)
        if length > BODY_BYTES_MAX:  # safety: too-large-batch-refused
            raise BatchRefused(f"a batch takes at most {BODY_BYTES_MAX} bytes, not {length}", path=self._folder)
        current = self.current
        if current is None or not current.has_room(length, len(events)):
            current = self.advance(length, stamp)
        while True:
            first_seq = current.tail.next_seq
            try:
                self._write(current, batch, stamp)
            except OSError as error:
                # In the next segment the events get the same numbers: the failed frame is declared void there. If this
                # was the second failure in a row, `advance` raises and so ends the loop.
                current = self.advance(length, stamp, error)  # safety: failed-descriptor-never-written-again
            else:
                # Only a write that returned proves that the new segment works, so the count of failures restarts
                # here.
                self._failures_in_row = 0  # safety: good-write-ends-failures
                if current.gathered is not None:
                    # Gather rows after the write: the table must contain only events that are durable in this
                    # segment.
                    current.gathered.add(events, first_seq, current.tail.previous_offset)
                return first_seq

    def go_on_in(self, current: Current) -> None:
        """Continue in the newest segment of a journal that was opened again."""
        self.current = current
        self.spares.resize(self._growth.planned(current.header.segment_no + 1))

    def finish(self, stamp: Stamp) -> None:
        """Make the newest segment as short as possible: with a head that holds the state, and little room after it.

        Raises as `put`. After JournalFull the present segment is still the newest one.
        """
        self.refuse()
        # The background thread would make a spare of full length meanwhile. It is not needed any more.
        self.spares.stop()
        current, capture = self.current, self._captured()
        least = next_header(self._base, current, _LEAST, body_bytes=0, capture_bytes=len(capture)).segment_bytes
        growth, self._growth = self._growth, _LEAST
        try:
            if current is None or current.header.segment_bytes > least or not current.has_room(len(capture), 0):
                self.advance(0, stamp)
            else:
                # It is short already: an earlier start finished too, and little came after that.
                self.put(Batch(int(FrameKind.CAPTURE), 0, capture), stamp)
        finally:
            self._growth = growth

    def _write(self, current: Current, batch: Batch, stamp: Stamp) -> None:
        alignment = current.header.alignment
        # One buffer serves all frames. It may be reused because only one write is in flight at a time.
        room = self._buffer.room(frame_bytes(len(batch.body), alignment))
        try:
            length, header, chain = compose(room, current.header, current.tail, batch, stamp)
        except struct.error as error:  # safety: label-out-of-bounds-refused
            # A label outside its field is found before any byte is written. The journal stays usable.
            raise BatchRefused(f"a label is outside its field: {stamp}: {error}", path=self._folder) from error
        try:
            self._reached("commit")
            # safety: tail-moves-after-write
            # Kill point: a process that dies here leaves zeros at the tail, or a part of this frame. The next start
            # cuts that off. Its events were never acknowledged.
            write_frames(self._files, current.descriptor, room[:length], current.tail.offset, direct=current.direct)
            # The descriptor has O_DSYNC: the frame is durable when the write returns. A crash from here on leaves the
            # frame whole, and the next start counts its events although the caller never got an answer.
            self._reached("committed")
        except OSError:
            raise
        except BaseException as error:
            # The write was interrupted before it was counted, so the bytes on disk are unknown. If the next batch were
            # written over them, it could tear a frame that a reader has already seen.
            self.freeze("a write was interrupted", error)  # safety: interrupted-write-freezes
            raise
        # Only now may the tail move: `last_seq` is what callers acknowledge, and it must never run ahead of the disk.
        current.tail.advance(header, chain, alignment)

    def advance(self, body_bytes: int, stamp: Stamp, error: OSError | None = None) -> Current:
        """Switch to the next segment, because this one is full or, if `error` is given, because it failed."""
        # Capture before the seal: if the capture raises, the segment is unchanged.
        capture = self._captured()
        if error is None:
            # Reserve before sealing. After a seal this segment takes no more frames, so a full disk would leave no
            # place to write. After a failure there is no choice: this segment is lost in any case.
            self._reserve(body_bytes, capture)  # safety: next-file-before-seal
        fault = self._poison(error) if error is not None else self._seal(stamp)
        while True:
            if self._failures_in_row > _FAILURES_MAX:  # safety: second-failure-freezes
                raise self.freeze("the journal failed twice in a row", error)
            try:
                return self._switch(body_bytes, stamp, capture, fault)
            except OSError as second:
                # No file has the segment's name yet, so a second file may be tried, unless space is missing.
                self._failures_in_row += 1
                error = second
                if second.errno in _NO_SPACE:
                    raise self.freeze("there is no space for the next segment", second) from second
            except JournalFailed:
                raise
            except BaseException as interruption:
                # `current` is still the old segment, which is sealed or has failed. Nothing may be written there.
                self.freeze("a rotation was interrupted", interruption)  # safety: interrupted-rotation-freezes
                raise

    def _reserve(self, body_bytes: int, capture: bytes) -> None:
        """Create the next segment's file before this segment is sealed. Raises JournalFull if there is no space."""
        size = self._next_header(self._base, body_bytes, capture).segment_bytes
        try:
            self.spares.reserve(size)
        except OSError as error:
            # Any other error occurs again when `_switch` creates the file, and is handled there.
            if error.errno in _MAY_BE_FREED:
                what = f"there is no space for the next segment: {error}"
                raise JournalFull(what, errno=error.errno, path=self._folder, seq=self.last_seq) from error

    def _next_header(self, base: SegmentHeader, body_bytes: int, capture: bytes) -> SegmentHeader:
        return next_header(base, self.current, self._growth, body_bytes=body_bytes, capture_bytes=len(capture))

    def _switch(self, body_bytes: int, stamp: Stamp, capture: bytes, fault: Fault | None) -> Current:
        before = self.current
        # The head is composed whole and written before the rename. Until then a crash leaves only a spare file, which
        # the next start removes.
        base = msgspec.structs.replace(self._base, created_wall_ns=stamp.wall_ns)
        header = self._next_header(base, body_bytes, capture)
        own = self.own_stamp(stamp.wall_ns, stamp.mono_ns)
        # One write for header, POISON frame and capture. No reader opens the file before its rename, so a torn write
        # does no harm here.
        before_tail = before.tail if before is not None else None
        head, tail = compose_head(self._buffer, header, before_tail, fault=fault, capture=capture, stamp=own)
        current = self._create(header, head, tail)
        if before is not None:
            # The old descriptor is closed only after the new segment is durable: until then the journal still ends in
            # the old one.
            self._close_quietly(before.descriptor)
        if self._tabulation is not None:
            # Each segment has a table of its own events only.
            current.gathered = Gathering(self._tabulation)
        # From here on `put` writes to the new segment. The assignment is last, so an exception above leaves the old
        # one.
        self.current = current
        # The old segment has a successor now and may be packed.
        self.packer.notify_closed()
        return current

    def _create(self, header: SegmentHeader, head: memoryview, tail: Tail) -> Current:
        """Make the next segment durable under its final name. Raises OSError if it does not exist, or JournalFailed."""
        # Zeros in the whole file are part of the format: the rules for a torn end rely on them.
        spare = self.spares.take(header.segment_bytes, self._growth.planned(header.segment_no + 1))
        try:
            descriptor = self._files.open_write(spare)
        except OSError:
            self.spares.discard(spare)
            raise
        # For each descriptor: the file system under a new segment is the same, but an earlier failure may have turned
        # it off.
        is_direct = self.direct.turn_on(descriptor, header.alignment)
        try:  # safety: segment-head-before-name
            write_frames(self._files, descriptor, head, 0, direct=is_direct)
        except OSError:
            self._files.close(descriptor)
            self.spares.discard(spare)
            raise
        # A crash here leaves a spare with a head and no events. The next start removes it and continues in the old
        # segment.
        self._reached("rotation_head")
        path = self._folder / segment_file_name(header.segment_no, header.first_seq)
        try:
            self._files.rename(spare, path)
            # Without this sync a power cut could remove the name of a segment that has acknowledged events.
            self._files.fsync_folder(self._folder)  # safety: name-durable-before-events
        except OSError as error:
            self._files.close(descriptor)
            # Never retry under the same number. The name may be on disk after all, and a second file with that number
            # could contradict the first one. Only a new start can find out.
            # safety: name-in-doubt-freezes
            raise self.freeze("the next segment cannot be given its name", error) from error
        # A crash here leaves the new segment complete and empty. The next start continues in it.
        self._reached("rotation")
        return Current(descriptor, path, header, tail, direct=is_direct)

    def _seal(self, stamp: Stamp) -> Fault | None:
        current = self.current
        # A crash between seal and switch leaves a sealed segment. It needs no second seal.
        if current is None or current.tail.sealed:  # safety: segment-sealed-once
            return None
        own = self.own_stamp(stamp.wall_ns, stamp.mono_ns)
        try:
            table = current.gathered.body() if current.gathered is not None else None
            # The table gets a write of its own: of two frames in one write, the second may reach the disk first.
            if table is not None and current.fits(len(table)):
                self._write(current, Batch(int(FrameKind.STEP_TABLE), 0, table, int(EntryFlag.SKIPPABLE)), own)
            seal = Batch(int(FrameKind.SEAL), 0, seal_body(current.tail, current.header.first_seq))
            self._write(current, seal, own)
        except OSError as error:
            # No event was in these frames, so nothing is lost. The successor declares the failed bytes void.
            return self._poison(error)
        return None

    def _poison(self, error: OSError) -> Fault | None:
        """Count the failure, and return where the valid bytes of the current segment end."""
        # Also if only a seal or a table failed: what the frame held says nothing about the disk.
        self._failures_in_row += 1
        self.poisoned += 1
        if self.current is None:
            return None
        if self.current.direct:
            # If O_DIRECT caused the failure (EINVAL), the next segment writes through the page cache. Otherwise it
            # would fail as well, and the second failure in a row would freeze the journal.
            self.direct.note_failure(error)
        segment_no, tail = self.current.header.segment_no, self.current.tail
        reason = str(error)[:_REASON_CHARACTERS_MAX]
        return Fault(segment_no, tail.offset, tail.last_seq, error.errno or 0, reason)

    def _captured(self) -> bytes:
        try:
            capture = self._capture()
        except BaseException as error:
            # The failure is a defect of the caller. No segment may begin without a capture, so the journal freezes.
            # safety: failed-capture-freezes
            self.freeze("the state at the head of the next segment cannot be captured", error)
            raise
        if len(capture) > BODY_BYTES_MAX:  # safety: too-large-state-freezes
            # A reader refuses bodies above this bound, so a larger capture would make the whole segment unreadable.
            large = OverflowError(f"a capture of {len(capture)} bytes; the format allows {BODY_BYTES_MAX}")
            raise self.freeze("the captured state is too large", large)
        return capture

    def watermark(self) -> None:
        """At an orderly close, write the proof that every event so far was acknowledged."""
        if self.failure is not None or self.current is None:  # safety: no-watermark-after-failure
            return
        last = self.current.tail.last
        # A seal is just as good a proof, and nothing may follow it.
        if last is None or last.kind in (FrameKind.WATERMARK, FrameKind.SEAL):  # safety: no-watermark-after-seal
            return
        # The watermark contains no event. If it cannot be written, only the proof is missing.
        with contextlib.suppress(OSError):
            batch = Batch(int(FrameKind.WATERMARK), 0, CLEAN_STOP)
            self._write(self.current, batch, self.own_stamp(last.wall_ns, last.mono_ns))

    def own_stamp(self, wall_ns: int, mono_ns: int) -> Stamp:
        """Return the labels for a frame that the journal itself writes: epoch and step of the frame before it."""
        # Without the labels of the frame before, a search by step would not find what follows such a frame.
        last = self.current.tail.last if self.current is not None else None
        return Stamp(last.epoch if last else 0, last.step if last else 0, wall_ns, mono_ns)

    def freeze(self, what: str, cause: BaseException | None) -> JournalFailed:
        """Freeze the journal and return the error that every later call raises."""
        code = getattr(cause, "errno", None) or 0
        reason = f"{what}: {cause}"
        # safety: frozen-journal-refuses
        self.failure = JournalFailed(what, errno=code, reason=reason, path=self._folder, seq=self.last_seq)
        return self.failure

    def refuse(self) -> None:
        """Raise the failure if the journal is frozen. Each call raises a new error object."""
        if self.failure is not None:
            raise self.failure.again()

    def release(self) -> None:
        """Close the segment. The caller stops the spare thread with `spares.stop()`."""
        if self.current is not None:
            self._close_quietly(self.current.descriptor)

    def _close_quietly(self, descriptor: int) -> None:
        # Every acknowledged byte was durable before the close, so an error here changes nothing.
        with contextlib.suppress(OSError):
            self._files.close(descriptor)
