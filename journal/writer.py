"""The journal open for writing, as its one caller sees it.

Opening has two steps, so that a refusal changes nothing. `open` locks and scans and writes nothing; the caller folds what
`captures` and `records` give and decides whether it can go on; `begin` sets a torn tail aside and makes the journal
writable. How frames get to the disk, and what happens when they do not, is `journal.appending`'s.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Self

from journal.appending import Appender
from journal.captures import Capture, captures_back
from journal.columns import Tabulation
from journal.errors import BatchRefused, JournalClosed
from journal.files import OS_FILES, Files
from journal.filesystem import refuse_untested
from journal.fork import abandon_after_fork
from journal.format import (
    ALIGNMENT,
    ALIGNMENT_MAX,
    ALIGNMENT_MIN,
    BOOT_ID_BYTES,
    CHAIN_BYTES,
    EVENTS_MAX,
    RUN_ID_BYTES,
    SEGMENT_BYTES,
    SEGMENT_BYTES_MAX,
    FrameKind,
)
from journal.frame import array_head
from journal.grouping import GroupCommit
from journal.locking import release_locks
from journal.opening import Found, Recovery, lock_and_scan, recover
from journal.records import Entry, Mark, walk_records
from journal.rotation import Current, first_header
from journal.segment import SegmentView
from journal.statistics import JournalStatistics
from journal.writing import Batch, Stamp

# Header, POISON frame, capture, watermark and seal take a block each at least; below this no room is left for events.
_SEGMENT_BLOCKS_MIN: Final = 8
# The kinds a caller may write. The others say something about the files, which only the journal knows.
_MARKS: Final = frozenset({FrameKind.CAPTURE, FrameKind.STATE_HASH, FrameKind.WATERMARK})
_EVENTS: Final = int(FrameKind.EVENTS)


def _nowhere(_point: str) -> None:
    """The default of `reached`: nobody wants to know."""


async def _nothing_to_wait_for() -> None:
    """Done when it is awaited."""


class Journal:
    """A journal open for writing. `open`, fold what `captures` and `records` give, `begin`, then `commit`.

    `commit` and `mark` are for one thread, which waits for its write. `append`, `durable` and `durable_async` are for any
    number of threads and tasks: the journal's own thread writes what they queue, a frame at a time. One journal is used
    in one of the two ways: from the first `append` on, `commit` and `mark` are refused. `close` belongs to one thread,
    `statistics` may be read by any.
    """

    def __init__(
        self,
        found: Found,
        files: Files,
        *,
        segment_bytes: int,
        alignment: int,
        reached: Callable[[str], None],
        tabulation: Tabulation | None,
    ) -> None:
        """Use `Journal.open`."""
        self._tabulation = tabulation
        self._found = found
        self._files = files
        self._alignment = alignment
        # A whole number of blocks: the last frame of a segment may end exactly at the end of its file.
        self._segment_bytes = segment_bytes // alignment * alignment
        self._reached = reached
        self._appender: Appender | None = None
        self._group: GroupCommit | None = None
        self._group_starts = threading.Lock()
        self._run_id = found.views[-1].header.run_id if found.views else None
        self._closed: str | None = None
        self.is_new = not found.views
        abandon_after_fork(self)

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        alignment: int | None = None,
        files: Files = OS_FILES,
        reached: Callable[[str], None] = _nowhere,
        tabulation: Tabulation | None = None,
        allow_filesystem: bool = True,
    ) -> Self:
        """Lock the journal in `folder` and scan it. Writes nothing but the folder and the lock file.

        `reached` is called with the names of the points a test may stop at: "commit" just before a frame is written,
        "committed" just after, "rotation_head" when the next segment has its content and no name yet, "rotation" when it has
        its name and is not yet in use. `alignment`: what new
        segments are aligned to, 4096 or the device's logical block if that is more. `tabulation`: the table that closed segments carry. Without
        `allow_filesystem` a network or stacked file system is refused. Raises JournalLocked,
        JournalDamaged, JournalTooNew, BatchRefused (a size out of bounds), FileSystemRefused, OSError.
        """
        if not allow_filesystem:
            refuse_untested(folder, files.file_system(folder))
        if alignment is None:
            alignment = min(max(ALIGNMENT, files.block_bytes(folder)), ALIGNMENT_MAX)
        if not ALIGNMENT_MIN <= alignment <= ALIGNMENT_MAX or alignment & (alignment - 1):
            raise BatchRefused(f"alignment {alignment} is not a power of two from {ALIGNMENT_MIN} to {ALIGNMENT_MAX}")
        if not _SEGMENT_BLOCKS_MIN * alignment <= segment_bytes <= SEGMENT_BYTES_MAX:
            least = _SEGMENT_BLOCKS_MIN * alignment
            raise BatchRefused(f"segment_bytes {segment_bytes} is not between {least} and {SEGMENT_BYTES_MAX}")
        return cls(
            lock_and_scan(files, folder, tabulation),
            files,
            segment_bytes=segment_bytes,
            alignment=alignment,
            reached=reached,
            tabulation=tabulation,
        )

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
        current = self._current
        return current.tail.last_seq if current is not None else self._found.last_seq

    @property
    def _current(self) -> Current | None:
        return self._appender.current if self._appender is not None else None

    def captures(self) -> Iterator[Capture]:
        """The folded states at the segment heads and between the frames, newest first. Before `begin`."""
        views = self._views()
        if self._found.stop is not None:
            tail = self._found.stop.tail
            yield from captures_back(reversed(views), tail.previous_offset, tail.chain)

    def records(self, after_seq: int = 0) -> Iterator[Entry | Mark]:
        """Every entry behind `after_seq`, and every mark of a state at or behind it, in order. Before `begin`.

        Every frame behind it is verified on the way; raises JournalDamaged where one does not verify.
        """
        views = self._views()
        if self._found.stop is not None:
            yield from walk_records(views, after_seq, self._found.stop.tail.offset)

    def _views(self) -> list[SegmentView]:
        self._refuse_if_closed()
        if self._appender is not None:
            raise JournalClosed("the journal is already begun", path=self.folder, hint="Use a Reader to read it.")
        return list(self._found.views)

    def begin(
        self, *, run_id: bytes, context_hash: bytes, capture: Callable[[], bytes], wall_ns: int, boot_id: bytes
    ) -> Recovery:
        """Make the journal writable: set a torn tail aside, make the first segment of a new journal.

        `capture` is called on the committing thread whenever a segment begins (here, in a new journal; else inside a
        `commit` or `mark`). It returns one msgpack value: the state folded over every event that is already durable,
        so without the batch that is being committed. An exception from it freezes the journal.

        `run_id` is 16 bytes and must be the journal's own if it has one; `context_hash` is 32 bytes, `boot_id` 16. The
        caller commits an event about the recovery itself. Raises BatchRefused, JournalFailed, JournalFull (a new journal
        found no space for its first segment).
        """
        self._views()
        if (len(run_id), len(context_hash), len(boot_id)) != (RUN_ID_BYTES, CHAIN_BYTES, BOOT_ID_BYTES):
            raise BatchRefused("run_id takes 16 bytes, context_hash 32, boot_id 16", path=self.folder)
        if self._run_id not in (None, run_id):
            raise BatchRefused("the journal belongs to another run", path=self.folder, hint="Give its own run_id.")
        base = first_header(run_id, context_hash, boot_id, self._segment_bytes, self._alignment)
        appender = Appender(self._files, self.folder, base, capture, reached=self._reached, tabulation=self._tabulation)
        self._appender, self._run_id = appender, run_id
        try:
            appender.spares.remove_leftovers()
            recovery = recover(self._files, self._found)
            appender.current = self._reopened(appender)
        except OSError as error:
            raise appender.freeze("the journal cannot be opened for writing", error) from error
        if appender.current is None:
            appender.begin(Stamp(0, 0, wall_ns, 0))
        self._found.close_views()
        return recovery

    def _reopened(self, appender: Appender) -> Current | None:
        """The newest segment, to go on in; None in a new journal."""
        stop = self._found.stop
        if stop is None:
            return None
        view = self._found.views[-1]
        descriptor = self._files.open_write(view.path)
        direct = appender.direct.turn_on(descriptor, view.alignment)
        return Current(descriptor, view.path, view.header, stop.tail, direct=direct, gathered=self._found.gathered)

    def commit(self, events: Sequence[bytes], *, epoch: int, step: int, wall_ns: int, mono_ns: int) -> int:
        """Write one batch of 1 to 4096 events, each one msgpack value. Returns the first one's sequence number.

        When it returns they are durable, all of them; when it raises, none is acknowledged. (After JournalFailed the
        batch may still be found whole by the next start: its outcome is unknown, as after any crash.) Raises
        BatchRefused, JournalFull (nothing has changed: commit it again later), JournalFailed, JournalClosed.
        """
        count = len(events)
        if not 1 <= count <= EVENTS_MAX:
            raise BatchRefused(f"a batch holds 1 to {EVENTS_MAX} events, not {count}", path=self.folder)
        # The events are joined as they are, never decoded: what they mean is the caller's, and so is that each is
        # exactly one msgpack value.
        body = b"".join((array_head(count), *events))
        if self._group is not None:
            self._refuse_while_grouped()
        return self._writable().put(Batch(_EVENTS, count, body), Stamp(epoch, step, wall_ns, mono_ns), events)

    def mark(self, kind: FrameKind, body: bytes, *, wall_ns: int, mono_ns: int) -> None:
        """Write a frame without events, durably: a CAPTURE, a STATE_HASH, or a WATERMARK when the journal falls idle.

        `body` is one msgpack value about the state after `last_seq`. A segment begins with a capture by itself; one more,
        now and then, shortens the fold from there to the end. Raises as `commit`.
        """
        if kind not in _MARKS:
            raise BatchRefused(f"{kind.name} frames are the journal's own", path=self.folder)
        self._refuse_while_grouped()
        appender = self._writable()
        appender.put(Batch(int(kind), 0, body), appender.own_stamp(wall_ns, mono_ns))

    def append(self, event: bytes, *, epoch: int, step: int) -> None:
        """Queue one event, one msgpack value, for the next frame; wait for it with `durable` or `durable_async`.

        Any thread or task may call it. Events keep the order of the calls. Waits while the queue is full (65 536 events,
        or some 64 MB). From the first call on the `capture` given to `begin` is called on the journal's own thread, and
        frames carry the times at which that thread wrote them. Raises BatchRefused, JournalFailed, JournalClosed.
        """
        (self._group or self._start_group()).append(event, epoch, step)

    def durable(self) -> None:
        """Block until everything that was appended before this call is durable. Raises JournalFailed, JournalClosed."""
        group = self._group
        if group is None:
            self._writable()
        else:
            group.durable()

    def durable_async(self) -> Awaitable[None]:
        """As `durable`, for tasks of the running event loop, which goes on meanwhile: `await journal.durable_async()`.

        A task that is cancelled while it waits takes nothing back: its events are written all the same.
        """
        group = self._group
        if group is None:
            self._writable()
            return _nothing_to_wait_for()
        return group.durable_async()

    def _start_group(self) -> GroupCommit:
        self._refuse_if_closed()
        with self._group_starts:
            if self._group is None:
                self._group = GroupCommit(self._writable())
            return self._group

    def _refuse_while_grouped(self) -> None:
        if self._group is not None:
            hint = "A journal is written by commit and mark, or by append: use append and durable."
            raise BatchRefused("the journal is being appended to", path=self.folder, hint=hint)

    def prepare_spare(self) -> bool:
        """Make the spare segment now, in this thread, unless there is one. Returns whether there is one."""
        return self._writable().spares.prepare()

    def start_preparing(self) -> None:
        """From now on keep one spare segment ready and pack closed segments, in background threads of the journal's own."""
        appender = self._writable()
        appender.spares.start()
        appender.packer.start()

    def _writable(self) -> Appender:
        if self._closed is not None:
            self._refuse_if_closed()
        if self._appender is None:
            raise JournalClosed("the journal is not begun yet", path=self.folder, hint="Call begin first.")
        if self._appender.failure is not None:
            self._appender.refuse()
        return self._appender

    def _refuse_if_closed(self) -> None:
        if self._closed is not None:
            raise JournalClosed(self._closed, path=self.folder)

    def free_bytes(self) -> int:
        """How much can still be written on the journal's file system. Any thread may ask. Raises OSError."""
        return self._files.free_bytes(self.folder)

    def statistics(self) -> JournalStatistics:
        """Where the writer stands. Any thread may ask."""
        appender, current, stop = self._appender, self._current, self._found.stop
        tail = current.tail if current is not None else stop.tail if stop is not None else None
        failure = appender.failure if appender is not None else None
        return JournalStatistics(
            segment_no=current.header.segment_no if current is not None else len(self._found.views),
            segment_offset=tail.offset if tail is not None else 0,
            segment_bytes=current.header.segment_bytes if current is not None else self._segment_bytes,
            last_seq=tail.last_seq if tail is not None else 0,
            chain=tail.chain.hex() if tail is not None else "",
            spare_ready=appender.spares.ready if appender is not None else False,
            spare_error=appender.spares.last_error if appender is not None else None,
            packed=appender.packer.packed if appender is not None else 0,
            pack_error=appender.packer.last_error if appender is not None else None,
            direct=current.direct if current is not None else False,
            direct_refused=appender.direct.refused if appender is not None else None,
            poisoned=appender.poisoned if appender is not None else 0,
            failed=failure.reason if failure is not None else None,
        )

    def close(self) -> None:
        """Write what is queued, a WATERMARK if the journal is in order, release the lock. A second call does nothing."""
        if self._closed is not None:
            return
        self._closed = "the journal is closed"
        group, self._group = self._group, None
        if group is not None:
            group.close()
        if self._appender is not None:
            self._appender.watermark()
            self._appender.spares.stop()
            self._appender.packer.stop()
        self._release()

    def abandon_in_child(self) -> None:
        """For the hook at fork: the lock and the segment stay the parent's. Closing here releases neither."""
        if self._closed is None:
            self._closed = "the journal belongs to the process that forked this one"
            self._group = None  # its thread is the parent's, and so is whoever held its lock
            self._release()

    def _release(self) -> None:
        self._found.close_views()
        if self._appender is not None:
            self._appender.release()
        # Last: whoever gets the lock next must find nothing of ours still open.
        release_locks(self._files, self._found.locks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
