"""The journal open for writing: the interface for its one caller.

Opening has two steps, so that a refusal changes nothing. `open` locks and scans, and writes no frame. The caller folds
the results of `captures` and `records` and decides whether it can continue. `begin` moves a torn tail to the quarantine
folder and makes the journal writable. `journal.appending` writes the frames and handles failed writes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Self

from journal.appending import Appender
from journal.columns import Tabulation
from journal.errors import BatchRefused, JournalClosed, JournalFull
from journal.files import OS_FILES, Files, release_locks
from journal.filesystem import refuse_untested
from journal.fork import abandon_after_fork
from journal.format import (
    ALIGNMENT,
    ALIGNMENT_MAX,
    ALIGNMENT_MIN,
    BOOT_ID_BYTES,
    CHAIN_BYTES,
    EVENTS,
    EVENTS_MAX,
    FIRST_SEGMENT_BYTES,
    RUN_ID_BYTES,
    SEGMENT_BYTES,
    FrameKind,
)
from journal.frame import array_head
from journal.opening import Found, Recovery, lock_and_scan, recover
from journal.records import Capture, JournalEntry, Mark, captures_back, walk_records
from journal.rotation import Current, Growth, first_header
from journal.segment import SegmentView
from journal.statistics import JournalStatistics
from journal.writing import Batch, Stamp

# The kinds that a caller may write. The others describe the files themselves, so only the journal may write them.
_MARKS: Final = frozenset({FrameKind.CAPTURE, FrameKind.STATE_HASH, FrameKind.WATERMARK})


def _nowhere(_point: str) -> None:
    """Do nothing. This is the default of `reached`."""


class Journal:
    """A journal open for writing. Call `open`, fold the results of `captures` and `records`, `begin`, then `commit`.

    One thread uses `commit` and `mark`, waits for its write, and calls `close`. Any thread may call `statistics`.
    """

    def __init__(
        self,
        found: Found,
        files: Files,
        *,
        growth: Growth,
        alignment: int,
        reached: Callable[[str], None],
        tabulation: Tabulation | None,
    ) -> None:
        """Use `Journal.open`."""
        self._tabulation = tabulation
        self._found = found
        self._files = files
        self._alignment = alignment
        self._growth = growth
        self._reached = reached
        self._appender: Appender | None = None
        self._run_id = found.views[-1].header.run_id if found.views else None
        self._closed: str | None = None
        # From the start, before `begin`: the locks are held already, and a child that inherits them would keep them
        # after this process has ended.
        abandon_after_fork(self)

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        first_bytes: int = FIRST_SEGMENT_BYTES,
        alignment: int | None = None,
        files: Files = OS_FILES,
        reached: Callable[[str], None] = _nowhere,
        tabulation: Tabulation | None = None,
        allow_filesystem: bool = True,
    ) -> Self:
        """Lock the journal in `folder` and scan it. Creates only the folder and the lock file.

        `reached` is called with the names of points at which a test may stop: "commit" just before a frame is written,
        "committed" just after it. At "rotation_head" the next segment has its content but not its name; at "rotation"
        it has its name but is not used yet. `alignment` is for new segments: by default 4096, or the device's logical
        block if that is larger. The first segment has `first_bytes`, each later one four times as many, up to
        `segment_bytes`. `tabulation` is the table that closed segments get. If `allow_filesystem` is false, a network
        or stacked file system is refused.

        Raises JournalLocked, JournalDamaged, JournalTooNew, BatchRefused (a size out of bounds), FileSystemRefused,
        OSError.
        """
        if not allow_filesystem:  # safety: network-file-system-refused
            refuse_untested(folder, files.file_system(folder))
        if alignment is None:
            # A frame must be whole blocks of the device: a torn write of a shared block could destroy acknowledged
            # bytes, and O_DIRECT requires it.
            alignment = min(max(ALIGNMENT, files.block_bytes(folder)), ALIGNMENT_MAX)
        if not ALIGNMENT_MIN <= alignment <= ALIGNMENT_MAX or alignment & (alignment - 1):
            raise BatchRefused(f"alignment {alignment} is not a power of two from {ALIGNMENT_MIN} to {ALIGNMENT_MAX}")
        growth = Growth.between(first_bytes, segment_bytes, alignment)
        return cls(
            lock_and_scan(files, folder, tabulation),
            files,
            growth=growth,
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
        # The tail moves only after a write has returned, so this number is durable at every moment.
        current = self._current
        return current.tail.last_seq if current is not None else self._found.last_seq

    @property
    def _current(self) -> Current | None:
        return self._appender.current if self._appender is not None else None

    def captures(self) -> Iterator[Capture]:
        """Yield the folded states at the segment heads and between the frames, newest first. Call before `begin`."""
        views = self._views()
        if self._found.stop is not None:
            tail = self._found.stop.tail
            # From the end backwards: the newest usable capture leaves the least to fold.
            yield from captures_back(reversed(views), tail.previous_offset, tail.chain)

    def records(self, after_seq: int = 0) -> Iterator[JournalEntry | Mark]:
        """Yield every entry after `after_seq` and every mark of a state at or after it, in order. Call before `begin`.

        Each frame is verified. Raises JournalDamaged at the first frame that does not verify.
        """
        views = self._views()
        if self._found.stop is not None:
            yield from walk_records(views, after_seq, self._found.stop.tail.offset)

    def _views(self) -> list[SegmentView]:
        self._refuse_if_closed()
        if self._appender is not None:
            raise JournalClosed("begin was already called", path=self.folder, hint="Use a Reader to read the journal.")
        return list(self._found.views)

    def begin(
        self, *, run_id: bytes, context_hash: bytes, capture: Callable[[], bytes], wall_ns: int, boot_id: bytes
    ) -> Recovery:
        """Make the journal writable: move a torn tail to quarantine, or create the first segment of a new journal.

        `capture` is called on the committing thread whenever a segment begins: here for a new journal, else inside
        `commit` or `mark`. It returns one msgpack value: the state folded over all durable events, without the batch
        that is being committed. If it raises, the journal freezes.

        `run_id` has 16 bytes and must equal the journal's own; `context_hash` has 32 bytes, `boot_id` 16. The caller
        itself commits an event about the recovery. Raises BatchRefused, JournalFailed, JournalFull (no space for the
        first segment of a new journal).
        """
        # This also refuses a second `begin` and a closed journal.
        self._views()
        if (len(run_id), len(context_hash), len(boot_id)) != (RUN_ID_BYTES, CHAIN_BYTES, BOOT_ID_BYTES):
            raise BatchRefused("run_id takes 16 bytes, context_hash 32, boot_id 16", path=self.folder)
        # A journal that was copied into another run's folder must not be continued there: its events belong to
        # another training.
        if self._run_id not in (None, run_id):  # safety: journal-of-one-run
            raise BatchRefused("the journal belongs to another run", path=self.folder, hint="Give its own run_id.")
        # Every later header is made from this one, so run id and context are the same in all segments of this
        # process.
        base = first_header(run_id, context_hash, boot_id, self._growth.planned(1), self._alignment)
        how = (self._files, self.folder, base, self._growth, capture)
        appender = Appender(*how, reached=self._reached, tabulation=self._tabulation)
        self._appender, self._run_id = appender, run_id
        try:
            # Leftovers first: they take space that the next segment may need. `open` has checked that none contains
            # an event.
            appender.spares.remove_leftovers()  # safety: leftover-spares-removed
            recovery = recover(self._files, self._found)
            self._reopen(appender)
        except OSError as error:
            # The state of the files is unknown after the failed call, so this object writes no more. A new start begins
            # with a new scan.
            raise appender.freeze("the journal cannot be opened for writing", error) from error
        if appender.current is None:
            # The first segment has a capture too: the state before any event. Readers need no rule for an empty
            # journal.
            appender.advance(0, Stamp(0, 0, wall_ns, 0))
        self._found.close_views()
        return recovery

    def _reopen(self, appender: Appender) -> None:
        """Open the newest segment to continue in it, unless the journal is new."""
        stop = self._found.stop
        if stop is None:
            return
        view = self._found.views[-1]
        # A new descriptor with O_DSYNC. The scan has verified the file through another one, which cannot write.
        descriptor = self._files.open_write(view.path)
        direct = appender.direct.turn_on(descriptor, view.alignment)
        gathered = self._found.gathered
        appender.go_on_in(Current(descriptor, view.path, view.header, stop.tail, direct=direct, gathered=gathered))

    def commit(self, events: Sequence[bytes], *, epoch: int, step: int, wall_ns: int, mono_ns: int) -> int:
        """Write one batch of 1 to 4096 events, each one msgpack value. Return the first event's sequence number.

        When it returns, all of them are durable. If it raises, none is acknowledged. After JournalFailed the outcome is
        unknown, as after a crash: the next start may find the whole batch. Raises BatchRefused, JournalFull (nothing
        has changed: commit it again later), JournalFailed, JournalClosed.
        """
        count = len(events)
        if not 1 <= count <= EVENTS_MAX:
            raise BatchRefused(f"a batch holds 1 to {EVENTS_MAX} events, not {count}", path=self.folder)
        # Join the events without decoding them. The caller guarantees that each is exactly one msgpack value.
        body = b"".join((array_head(count), *events))
        return self._writable().put(Batch(EVENTS, count, body), Stamp(epoch, step, wall_ns, mono_ns), events)

    def mark(self, kind: FrameKind, body: bytes, *, wall_ns: int, mono_ns: int) -> None:
        """Write a durable frame without events: a CAPTURE, a STATE_HASH, or a WATERMARK when the journal becomes idle.

        `body` is one msgpack value about the state after `last_seq`. Every segment begins with a capture. A further one
        shortens the next fold, which starts there. Raises as `commit`.
        """
        # A caller that could write a SEAL or a POISON frame could hide acknowledged events from every reader.
        if kind not in _MARKS:  # safety: own-kinds-not-for-callers
            raise BatchRefused(f"only the journal itself writes {kind.name} frames", path=self.folder)
        appender = self._writable()
        appender.put(Batch(int(kind), 0, body), appender.own_stamp(wall_ns, mono_ns))

    def finish(self, *, wall_ns: int, mono_ns: int) -> None:
        """Leave files as large as their content: call it before `close`. Raises as `commit`.

        The newest segment then holds the state and little more. All earlier ones are packed, as far as 10 s are enough.
        """
        appender = self._writable()
        with contextlib.suppress(JournalFull):  # nothing has changed then, and packing may free space
            appender.finish(appender.own_stamp(wall_ns, mono_ns))
        appender.packer.pack_rest()

    def prepare_spare(self) -> bool:
        """Make the spare segment now, in this thread, unless one is ready. Return whether one is ready."""
        return self._writable().spares.prepare()

    def start_preparing(self) -> None:
        """Start the background threads that keep one spare segment ready and pack closed segments."""
        # Only after `begin`: a start that is refused must not fill the disk with spares.
        appender = self._writable()
        appender.spares.start()
        appender.packer.start()

    def _writable(self) -> Appender:
        self._refuse_if_closed()
        if self._appender is None:
            raise JournalClosed("begin was not called on this journal", path=self.folder, hint="Call begin first.")
        self._appender.refuse()
        return self._appender

    def _refuse_if_closed(self) -> None:
        if self._closed is not None:
            raise JournalClosed(self._closed, path=self.folder)

    def is_deleted(self) -> bool:
        """Return whether the file to which frames are written was deleted: they vanish when it is closed."""
        current = self._current
        return current is not None and self._files.is_deleted(current.descriptor)

    def free_bytes(self) -> int:
        """Return how many bytes can still be written to the journal's file system. Thread-safe. Raises OSError."""
        return self._files.free_bytes(self.folder)

    def statistics(self) -> JournalStatistics:
        """Return the writer's state. Thread-safe."""
        return JournalStatistics.of(self._appender, self._found.stop, segments=len(self._found.views))

    def close(self) -> None:
        """Write a WATERMARK if nothing failed, and release the lock. A second call does nothing."""
        if self._closed is not None:
            return
        # Set this first: a second `close`, also after one that raised, must not write to descriptors that may be
        # closed.
        self._closed = "the journal is closed"
        if self._appender is not None:
            # The watermark after the last event, and before the threads end: it says that every event before it was
            # acknowledged.
            self._appender.watermark()  # safety: clean-stop-leaves-proof
            self._appender.spares.stop()
            # Threads end before the locks are released: the next writer's packer must be the only one in the folder.
            self._appender.packer.stop()
        self._release()

    def abandon_in_child(self) -> None:
        """Close the descriptors in a forked child. The parent keeps the lock and the segment."""
        if self._closed is None:
            self._closed = "the journal belongs to the process that forked this one"
            self._release()

    def _release(self) -> None:
        self._found.close_views()
        if self._appender is not None:
            self._appender.release()
        # Release the locks last. The next writer then finds no file of this one still open.
        release_locks(self._files, self._found.locks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
