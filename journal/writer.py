"""The writer: one process, one thread, one write in flight.

Order of a commit: frame the batch, one `pwrite` of whole blocks on an O_DSYNC descriptor, then, and only then, count the
events as there. Order of a rotation: seal, take a spare, write its whole head (header, capture) in one write, rename,
sync the folder, switch. A segment under its final name is therefore always complete at its head.

When a write fails, whatever the reason:

* That descriptor is never written or synced again. What the failed write left behind is unknown, and a second try that
  succeeds would prove nothing: the kernel may have dropped the first one's pages and forgotten the error.
* The batch goes into the next segment, behind a POISON frame that declares the failed bytes void.
* If that fails too, or there is no space for a next segment, the journal freezes: every later call raises
  JournalFailed at once. Nothing acknowledged is lost, and a new start can go on from there.
"""

from __future__ import annotations

import contextlib
import errno as errno_codes
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Self

import msgspec

from journal.errors import BatchRefused, JournalClosed, JournalFailed
from journal.files import OS_FILES, Files, write_all
from journal.fork import abandon_after_fork
from journal.format import (
    ALIGNMENT,
    ALIGNMENT_MAX,
    ALIGNMENT_MIN,
    BODY_BYTES_MAX,
    EVENTS_MAX,
    SEGMENT_BYTES,
    SEGMENT_BYTES_MAX,
    FrameKind,
    SegmentHeader,
)
from journal.frame import array_head
from journal.opening import Found, Recovery, lock_and_scan, recover
from journal.records import Capture, Entry, Mark, capture_at_head, walk_records
from journal.rotation import Current, RenameFailed, create_segment, first_header, next_header
from journal.segment import SegmentView
from journal.spare import SpareMaker
from journal.statistics import JournalStatistics
from journal.writing import CLEAN_STOP, Batch, Fault, Head, Stamp, compose, seal_body

_NO_SPACE: Final = frozenset({errno_codes.ENOSPC, errno_codes.EDQUOT, errno_codes.EFBIG})
_SEGMENT_BLOCKS_MIN: Final = 8
_MARKS: Final = frozenset({FrameKind.STATE_HASH, FrameKind.WATERMARK})
_EVENTS: Final = int(FrameKind.EVENTS)


def _nowhere(_point: str) -> None:
    """The default of `reached`: nobody wants to know."""


class Journal:
    """A journal open for writing. `open`, fold what `captures` and `records` give, `begin`, then `commit`.

    Not for several threads at once: `commit`, `mark` and `close` belong to one thread; `statistics` may be read by any.
    """

    def __init__(
        self, found: Found, files: Files, segment_bytes: int, alignment: int, reached: Callable[[str], None]
    ) -> None:
        """Use `Journal.open`."""
        self._found = found
        self._files = files
        self._alignment = alignment
        self._segment_bytes = segment_bytes // alignment * alignment
        self._reached = reached
        self._spares = SpareMaker(files, found.folder, self._segment_bytes)
        self._current: Current | None = None
        self._capture: Callable[[], bytes] | None = None
        self._base: SegmentHeader | None = None
        self._run_id = found.views[-1].header.run_id if found.views else None
        self._failure: JournalFailed | None = None
        self._closed: str | None = None
        self._failures_in_row = 0
        self._poisoned = 0
        self.is_new = not found.views
        abandon_after_fork(self)

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        alignment: int = ALIGNMENT,
        files: Files = OS_FILES,
        reached: Callable[[str], None] = _nowhere,
    ) -> Self:
        """Lock the journal in `folder` and scan it. Writes nothing but the folder and the lock file.

        `reached` is called with the names of the points a test may stop at: "commit" just before a batch is written,
        "committed" just after, "rotation" when the next segment has its name and is not yet in use. Raises
        JournalLocked, JournalDamaged, JournalTooNew, BatchRefused (a size out of bounds), OSError.
        """
        if not ALIGNMENT_MIN <= alignment <= ALIGNMENT_MAX or alignment & (alignment - 1):
            raise BatchRefused(f"alignment {alignment} is not a power of two from {ALIGNMENT_MIN} to {ALIGNMENT_MAX}")
        if not _SEGMENT_BLOCKS_MIN * alignment <= segment_bytes <= SEGMENT_BYTES_MAX:
            least = _SEGMENT_BLOCKS_MIN * alignment
            raise BatchRefused(f"segment_bytes {segment_bytes} is not between {least} and {SEGMENT_BYTES_MAX}")
        return cls(lock_and_scan(files, folder), files, segment_bytes, alignment, reached)

    @property
    def folder(self) -> Path:
        """The journal's folder."""
        return self._found.folder

    @property
    def run_id(self) -> bytes | None:
        """The run's 16 bytes; None in a new journal until `begin`."""
        return self._run_id

    @property
    def last_seq(self) -> int:
        """The last durable sequence number; 0 if there is none."""
        return self._current.tail.last_seq if self._current is not None else self._found.last_seq

    def captures(self) -> Iterator[Capture]:
        """The folded states at the segment heads, newest first. Before `begin`."""
        for view in reversed(self._views()):
            capture = capture_at_head(view)
            view.close()
            if capture is not None:
                yield capture

    def records(self, after_seq: int = 0) -> Iterator[Entry | Mark]:
        """Every entry behind `after_seq`, and every mark of a state at or behind it, in order. Before `begin`.

        Every frame is verified on the way; raises JournalDamaged where one does not verify.
        """
        views = self._views()
        if self._found.stop is not None:
            yield from walk_records(views, after_seq, self._found.stop.tail.offset)

    def _views(self) -> list[SegmentView]:
        self._refuse_unless(begun=False)
        return list(self._found.views)

    def begin(
        self, *, run_id: bytes, context_hash: bytes, capture: Callable[[], bytes], wall_ns: int, boot_id: bytes
    ) -> Recovery:
        """Make the journal writable: set a torn tail aside, make the first segment of a new journal.

        `capture` is called on the committing thread whenever a segment begins (here, in a new journal; else inside a
        `commit` or `mark`). It returns one msgpack value: the state folded over every event that is already durable,
        so without the batch that is being committed. An exception from it freezes the journal.

        `run_id` is 16 bytes and must be the journal's own if it has one; `context_hash` is 32 bytes, `boot_id` 16. The
        caller commits an event about the recovery itself. Raises BatchRefused, JournalFailed.
        """
        self._refuse_unless(begun=False)
        if (len(run_id), len(context_hash), len(boot_id)) != (16, 32, 16):
            raise BatchRefused("run_id takes 16 bytes, context_hash 32, boot_id 16", path=self.folder)
        if self._run_id not in (None, run_id):
            raise BatchRefused("the journal belongs to another run", path=self.folder, hint="Give its own run_id.")
        size, alignment = self._segment_bytes, self._alignment
        self._base = first_header(run_id, context_hash, boot_id, size, alignment)
        self._run_id, self._capture = run_id, capture
        try:
            self._spares.remove_leftovers()
            recovery = recover(self._files, self._found)
            self._current = self._reopen() if self._found.views else None
        except OSError as error:
            raise self._freeze("the journal cannot be opened for writing", error) from error
        if self._current is None:
            self._advance(0, Stamp(0, 0, wall_ns, 0))
        self._found.close_views()
        return recovery

    def _reopen(self) -> Current:
        view, stop = self._found.views[-1], self._found.stop
        if stop is None:
            raise self._not_begun()
        return Current(self._files.open_write(view.path), view.path, view.header, stop.tail)

    def commit(self, events: Sequence[bytes], *, epoch: int, step: int, wall_ns: int, mono_ns: int) -> int:
        """Write one batch of 1 to 4096 events, each one msgpack value. Returns the first one's sequence number.

        When it returns they are durable, all of them; when it raises, none is acknowledged. (After JournalFailed the
        batch may still be found whole by the next start: its outcome is unknown, as after any crash.) Raises
        BatchRefused, JournalFailed, JournalClosed.
        """
        count = len(events)
        if not 1 <= count <= EVENTS_MAX:
            raise BatchRefused(f"a batch holds 1 to {EVENTS_MAX} events, not {count}", path=self.folder)
        body = array_head(count) + b"".join(events)
        return self._put(Batch(_EVENTS, count, body), Stamp(epoch, step, wall_ns, mono_ns))

    def mark(self, kind: FrameKind, body: bytes, *, wall_ns: int, mono_ns: int) -> None:
        """Write a frame without events, durably: a STATE_HASH, or a WATERMARK when the journal falls idle.

        `body` is one msgpack value about the state after `last_seq`. Raises as `commit`.
        """
        if kind not in _MARKS:
            raise BatchRefused(f"{kind.name} frames are the journal's own", path=self.folder)
        self._put(Batch(int(kind), 0, body), self._own_stamp(wall_ns, mono_ns))

    def prepare_spare(self) -> bool:
        """Make the spare segment now, in this thread, unless there is one. Returns whether there is one."""
        self._refuse_unless(begun=True)
        return self._spares.prepare()

    def start_preparing(self) -> None:
        """Keep one spare segment ready from now on, in a background thread of the journal's own."""
        self._refuse_unless(begun=True)
        self._spares.start()

    def statistics(self) -> JournalStatistics:
        """Where the writer stands. Any thread may ask."""
        current = self._current
        tail = current.tail if current is not None else (self._found.stop.tail if self._found.stop else None)
        return JournalStatistics(
            segment_no=current.header.segment_no if current is not None else len(self._found.views),
            segment_offset=tail.offset if tail is not None else 0,
            segment_bytes=current.header.segment_bytes if current is not None else self._segment_bytes,
            last_seq=self.last_seq,
            chain=tail.chain.hex() if tail is not None else "",
            spare_ready=self._spares.ready,
            spare_error=self._spares.last_error,
            poisoned=self._poisoned,
            failed=self._failure.reason if self._failure is not None else None,
        )

    def close(self) -> None:
        """Write a WATERMARK if the journal is in order, release the lock. A second call does nothing."""
        if self._closed is not None:
            return
        if self._current is not None and self._failure is None:
            self._watermark(self._current)
        self._closed = "the journal is closed"
        self._spares.stop()
        self._release()

    def _watermark(self, current: Current) -> None:
        # Evidence, not data: where it cannot be written, nothing is lost but the proof.
        last = current.tail.last
        if last is None or last.kind in (FrameKind.WATERMARK, FrameKind.SEAL):
            return
        with contextlib.suppress(OSError):
            batch = Batch(int(FrameKind.WATERMARK), 0, CLEAN_STOP)
            self._write(current, batch, self._own_stamp(last.wall_ns, last.mono_ns))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _put(self, batch: Batch, stamp: Stamp) -> int:
        current = self._current
        length = len(batch.body)
        if current is None or self._failure is not None or self._closed is not None:
            self._refuse_unless(begun=True)
        if length > BODY_BYTES_MAX:
            raise BatchRefused(f"a batch takes at most {BODY_BYTES_MAX} bytes, not {length}", path=self.folder)
        if current is None or not current.has_room(length):
            current = self._advance(length, stamp)
        while True:
            first_seq = current.tail.next_seq
            try:
                self._write(current, batch, stamp)
            except OSError as error:
                current = self._advance(length, stamp, error)
            else:
                self._failures_in_row = 0
                return first_seq

    def _write(self, current: Current, batch: Batch, stamp: Stamp) -> None:
        try:
            data, header, chain = compose(current.header, current.tail, batch, stamp)
        except struct.error as error:
            raise BatchRefused(f"a label is outside its field: {stamp}: {error}", path=self.folder) from error
        try:
            self._reached("commit")
            write_all(self._files, current.descriptor, data, current.tail.offset)
            self._reached("committed")
        except OSError:
            raise
        except BaseException as error:
            # Interrupted between the write and the count of it: what is on disk is not known any more.
            self._freeze("a write was interrupted", error)
            raise
        current.tail.advance(header, chain, current.header.alignment)

    def _advance(self, body_bytes: int, stamp: Stamp, error: OSError | None = None) -> Current:
        """Go on in the next segment, because this one is full or, given an error, because it failed."""
        capture = self._captured()
        fault = self._poison(error) if error is not None else self._seal(stamp)
        while True:
            if self._failures_in_row > 1:
                raise self._freeze("the journal failed twice in a row", error)
            try:
                return self._switch(body_bytes, stamp, capture, fault)
            except OSError as second:
                self._failures_in_row += 1
                error = second
                if second.errno in _NO_SPACE:
                    raise self._freeze("there is no space for the next segment", second) from second
            except JournalFailed:
                raise
            except BaseException as error:
                self._freeze("a rotation was interrupted", error)
                raise

    def _switch(self, body_bytes: int, stamp: Stamp, capture: bytes, fault: Fault | None) -> Current:
        before = self._current
        if self._base is None:
            raise self._not_begun()
        base = msgspec.structs.replace(self._base, created_wall_ns=stamp.wall_ns)
        header = next_header(base, before, body_bytes, len(capture))
        own = self._own_stamp(stamp.wall_ns, stamp.mono_ns)
        head = Head(header, before.tail if before is not None else None, fault, capture, own)
        try:
            current = create_segment(self._files, self._spares, self.folder, head, self._reached)
        except RenameFailed as failed:
            raise self._freeze("the next segment cannot be given its name", failed.error) from failed
        if before is not None:
            self._close_quietly(before.descriptor)
        self._current = current
        return current

    def _seal(self, stamp: Stamp) -> Fault | None:
        current = self._current
        if current is None or current.tail.sealed:
            return None
        batch = Batch(int(FrameKind.SEAL), 0, seal_body(current.tail, current.header.first_seq))
        try:
            self._write(current, batch, self._own_stamp(stamp.wall_ns, stamp.mono_ns))
        except OSError as error:
            return self._poison(error)
        return None

    def _poison(self, error: OSError) -> Fault | None:
        self._failures_in_row += 1
        self._poisoned += 1
        current = self._current
        if current is None:
            return None
        segment_no, tail = current.header.segment_no, current.tail
        return Fault(segment_no, tail.offset, tail.last_seq, error.errno or 0, str(error)[:1024])

    def _captured(self) -> bytes:
        if self._capture is None:
            raise self._not_begun()
        try:
            capture = self._capture()
        except BaseException as error:
            self._freeze("the state at the head of the next segment cannot be captured", error)
            raise
        if len(capture) > BODY_BYTES_MAX:
            large = OverflowError(f"a capture of {len(capture)} bytes; the format allows {BODY_BYTES_MAX}")
            raise self._freeze("the captured state is too large", large)
        return capture

    def _own_stamp(self, wall_ns: int, mono_ns: int) -> Stamp:
        last = self._current.tail.last if self._current is not None else None
        return Stamp(last.epoch if last else 0, last.step if last else 0, wall_ns, mono_ns)

    def _freeze(self, what: str, cause: BaseException | None) -> JournalFailed:
        code = getattr(cause, "errno", None) or 0
        self._failure = JournalFailed(what, errno=code, reason=f"{what}: {cause}", path=self.folder, seq=self.last_seq)
        return self._failure

    def _refuse_unless(self, *, begun: bool) -> None:
        if self._closed is not None:
            raise JournalClosed(self._closed, path=self.folder)
        if self._failure is not None:
            failed = self._failure
            raise JournalFailed(failed.what, errno=failed.errno, reason=failed.reason, path=failed.path, seq=failed.seq)
        if begun and self._current is None:
            raise self._not_begun()
        if self._current is not None and not begun:
            raise JournalClosed("the journal is already begun", path=self.folder, hint="Use a Reader to read it.")

    def _not_begun(self) -> JournalClosed:
        return JournalClosed("the journal is not begun yet", path=self.folder, hint="Call begin first.")

    def _release(self) -> None:
        self._found.close_views()
        if self._current is not None:
            self._close_quietly(self._current.descriptor)
        self._files.close(self._found.lock)

    def _close_quietly(self, descriptor: int) -> None:
        # Everything acknowledged was durable before; an error on close has nothing left to say.
        with contextlib.suppress(OSError):
            self._files.close(descriptor)

    def abandon_in_child(self) -> None:
        """For the hook at fork: the lock and the segment stay the parent's. Closing here releases neither."""
        if self._closed is None:
            self._closed = "the journal belongs to the process that forked this one"
            self._release()
