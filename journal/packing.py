"""Packing sealed segments in the background: 4096 bytes a step become some 120, and readers see no difference.

Order: pack into a file of another name, sync it, read it back and compare it with the segment, give it its name, sync the
folder, and only then remove the segment. So at every instant, and after a crash at any of them, at least one whole copy
has its name; where both have theirs, readers take the unpacked one, and the next start compares again.

Only segments that have a successor are packed: nobody writes to them any more, also not a repair. A segment that cannot be
read, or whose packed form differs, is left alone, and `last_error` says so.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from pathlib import Path
from typing import Final

from journal.background import be_nice
from journal.errors import JournalError
from journal.files import Files
from journal.packed import PlainFile, is_packed, open_packed, packed_path, same_bytes, write_packed
from journal.segment import list_segments
from journal.spare import SPARE_SUFFIX

_log = logging.getLogger(__name__)
# Four times as long as a piece takes: a segment is packed in some two seconds, and the kernel's thread meets us rarely.
_PAUSE_S: Final = 0.005


class _Stopped(Exception):
    """The journal is being closed."""


class Packer:
    """Packs the segments of one folder, one at a time, while their writer holds the lock. A folder has only one of it."""

    def __init__(self, files: Files, folder: Path, *, pause_s: float = _PAUSE_S) -> None:
        self._files = files
        self._folder = folder
        self._pause_s = pause_s
        self._stopping = threading.Event()
        self._work = threading.Event()
        self._turn = threading.Lock()
        self._left_alone: set[Path] = set()
        self._thread: threading.Thread | None = None
        self.packed = 0
        self.last_error: str | None = None

    def start(self) -> None:
        """Start the background thread; a second call does nothing."""
        if self._thread is None:
            self._work.set()
            self._thread = threading.Thread(target=self._run, name="journal-pack", daemon=True)
            self._thread.start()

    def notify_closed(self) -> None:
        """A segment was closed: there may be something to pack."""
        self._work.set()

    def stop(self) -> None:
        """End the thread; what it was packing is left unpacked."""
        self._stopping.set()
        self._work.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        be_nice()
        while True:
            self._work.wait()
            self._work.clear()
            if self._stopping.is_set():
                return
            with contextlib.suppress(_Stopped):
                self.pack_all()

    def pack_all(self) -> None:
        """Pack every closed segment that is not packed, in this thread. What goes wrong is in `last_error`.

        Any thread may ask. One packs at a time: two would write one and the same file aside, and one of them name it half.
        """
        with self._turn:
            self._pack_closed()

    def _pack_closed(self) -> None:
        try:
            names = list_segments(self._files, self._folder)
        except (JournalError, OSError) as error:
            self._note(error)
            return
        for name in names[:-1]:
            if not is_packed(name.path) and name.path not in self._left_alone:
                self._pack_or_leave(name.path)

    def _pack_or_leave(self, path: Path) -> None:
        try:
            self._pack(path)
        except JournalError as error:
            self._left_alone.add(path)
            self._note(error)
        except OSError as error:
            self._note(error)  # perhaps there is no space just now: tried again when the next segment is closed
        else:
            self.packed += 1
            self.last_error = None

    def _note(self, error: Exception) -> None:
        self.last_error = str(error)
        _log.warning("a segment is not packed: %s", error)

    def _pack(self, path: Path) -> None:
        target = packed_path(path)
        aside = self._folder / f"pack-{path.stem}{SPARE_SUFFIX}"  # removed at a start, as a spare is
        source = PlainFile(self._files, self._files.open_read(path))
        try:
            # One that is there is of an earlier life: whole, or from a crash before it was durable. The segment counts.
            is_there = target.name in self._files.names(self._folder)
            if not (is_there and self._same(source, target)):
                self._write_aside(source, aside)
                self._files.rename(aside, target)
            self._files.fsync_folder(self._folder)
            self._files.unlink(path)
        finally:
            source.close()

    def _write_aside(self, source: PlainFile, aside: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.unlink(aside)  # of an attempt that failed, and could not be cleaned up either
        try:
            write_packed(self._files, source, aside, self._rest)
            if not self._same(source, aside):
                raise JournalError("the packed segment differs from what was packed", path=aside)
        except BaseException:
            with contextlib.suppress(OSError):
                self._files.unlink(aside)
            raise

    def _same(self, source: PlainFile, path: Path) -> bool:
        try:
            packed = open_packed(self._files, path)
        except JournalError:
            return False
        try:
            return same_bytes(source, packed, self._rest)
        except JournalError:
            return False
        finally:
            packed.close()

    def _rest(self) -> None:
        if self._stopping.wait(self._pause_s):
            raise _Stopped
