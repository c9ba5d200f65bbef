"""Pack sealed segments in the background: 4096 bytes a step become about 120. Readers see no difference.

Order: pack into a file with a temporary name, sync it, read it back and compare it with the segment. Then rename it,
sync the folder, and only after that remove the plain segment. So at every moment, also after a crash, at least one
complete copy has its name. If both exist, readers use the plain one, and the next start compares them again.

Only segments with a successor are packed, because nothing writes to them any more, not even a repair. If a segment
cannot be read, or its packed form differs, it stays unpacked and `last_error` gives the reason.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from pathlib import Path
from typing import Final

from journal.errors import JournalError
from journal.files import Files
from journal.packed import PlainFile, is_packed, open_packed, packed_path, same_bytes, write_packed
from journal.segment import list_segments
from journal.spare import SPARE_SUFFIX, be_nice

_log = logging.getLogger(__name__)
# Four times the time that a piece takes. A segment is packed in about two seconds, and the kernel's thread seldom waits
# for this thread.
_PAUSE_S: Final = 0.005
# How long the last packing may take, while a daemon ends. A segment of full length takes about a second.
_LAST_S: Final = 10.0


class _Stopped(Exception):
    """Ends the packing of a segment because the journal is being closed, or the time for it is over."""


class Packer:
    """Packs the segments of one folder, one at a time. A folder has one packer: that of the writer with the lock."""

    def __init__(self, files: Files, folder: Path, *, pause_s: float = _PAUSE_S) -> None:
        self._files = files
        self._folder = folder
        self._pause_s = pause_s
        self._deadline = float("inf")
        self._stopping = threading.Event()
        self._work = threading.Event()
        # Held while packing: any thread may call `pack_all` beside the background thread.
        self._turn = threading.Lock()
        self._left_alone: set[Path] = set()
        self._thread: threading.Thread | None = None
        self.packed = 0
        self.last_error: str | None = None

    def start(self) -> None:
        """Start the background thread; a second call does nothing."""
        if self._thread is None:
            # Segments of earlier starts may still be unpacked: look once without waiting for a rotation.
            self._work.set()
            self._thread = threading.Thread(target=self._run, name="journal-pack", daemon=True)
            self._thread.start()

    def notify_closed(self) -> None:
        """Wake the thread: a segment was closed and may be packed."""
        self._work.set()

    def stop(self) -> None:
        """End the thread. The segment that it was packing stays unpacked."""
        # The thread may sleep until the next segment is closed, so wake it to see the flag.
        self._stopping.set()
        self._work.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        be_nice()
        while True:
            self._work.wait()
            # Clear before the work, not after it: a segment that is closed meanwhile sets the event again.
            self._work.clear()
            if self._stopping.is_set():
                return
            with contextlib.suppress(_Stopped):
                self.pack_all()

    def pack_all(self) -> None:
        """Pack every closed segment that is not packed yet, in the calling thread. Errors go to `last_error`.

        Any thread may call this; one packs at a time. Two would write the same temporary file, and one of them could
        rename it half written.
        """
        with self._turn:  # safety: one-packs-at-a-time
            try:
                names = list_segments(self._files, self._folder)
            except (JournalError, OSError) as error:
                self._note(error)
                return
            for name in names[:-1]:  # safety: newest-segment-not-packed
                # The newest segment is never packed: its writer adds frames to it, and a repair may cut it.
                if not is_packed(name.path) and name.path not in self._left_alone:
                    self._pack_or_leave(name.path)

    def pack_rest(self) -> None:
        """Pack what is left, in the calling thread and without pauses, for `_LAST_S` at most.

        Nothing is recorded any more, so there is nothing to be kind to. A segment for which the time is too short stays
        unpacked until the next start.
        """
        self._pause_s, self._deadline = 0.0, time.monotonic() + _LAST_S
        with contextlib.suppress(_Stopped):
            self.pack_all()

    def _pack_or_leave(self, path: Path) -> None:
        try:
            self._pack(path)
        except (JournalError, OSError) as error:
            # Damage does not go away by itself: another attempt would only repeat the message at every rotation. But a
            # disk that is full now may have space when the next segment is closed.
            if isinstance(error, JournalError):
                self._left_alone.add(path)
            self._note(error)
        else:
            self.packed += 1
            self.last_error = None

    def _note(self, error: Exception) -> None:
        self.last_error = str(error)
        _log.warning("A segment was not packed: %s", error)

    def _pack(self, path: Path) -> None:
        target = packed_path(path)
        aside = self._folder / f"pack-{path.stem}{SPARE_SUFFIX}"  # removed at a start, as a spare is
        source = PlainFile(self._files, self._files.open_read(path))
        try:
            # A packed file that exists was left by an earlier process: complete, or from a crash before it was durable.
            # Only the comparison with the plain segment tells.
            is_there = target.name in self._files.names(self._folder)
            if not (is_there and self._same(source, target)):  # safety: older-packed-copy-compared
                self._write_aside(source, aside)
                self._files.rename(aside, target)
            # The packed file's name must be durable before the plain segment goes. Otherwise a power cut could leave
            # neither of the two names.
            self._files.fsync_folder(self._folder)  # safety: packed-name-durable
            self._files.unlink(path)
        finally:
            source.close()

    def _write_aside(self, source: PlainFile, aside: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            # safety: earlier-attempt-removed
            self._files.unlink(aside)  # left by a failed attempt that could not remove it
        try:
            write_packed(self._files, source, aside, self._rest)
            # Read the file back before it replaces acknowledged bytes: the disk, the memory or the compressor may
            # have failed.
            if not self._same(source, aside):  # safety: packed-copy-read-back
                raise JournalError("the packed segment differs from what was packed", path=aside)
        except BaseException:
            # Also if the journal is being closed: the partial file would take space until the next start.
            with contextlib.suppress(OSError):
                self._files.unlink(aside)
            raise

    def _same(self, source: PlainFile, path: Path) -> bool:
        try:
            packed = open_packed(self._files, path)
        except JournalError:
            return False
        try:
            # All bytes, zeros included: the hash chain covers only frames, and a packed segment must unpack to the
            # same file.
            return same_bytes(source, packed, self._rest)
        except JournalError:
            return False
        finally:
            packed.close()

    def _rest(self) -> None:
        # The exception leaves a partial file, which `_write_aside` removes, or the next start does.
        if self._stopping.wait(self._pause_s) or time.monotonic() > self._deadline:
            raise _Stopped
