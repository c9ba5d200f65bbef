"""The errors of the journal: what went wrong, where, and what to do next.

Every error is a `JournalError`. Its text is a full sentence with the file, the offset and the sequence number it is
about, and the same facts stand in its fields for programs. The tree is small on purpose; callers tell apart what they
must answer differently: try again later, refuse to start, or freeze.
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Final


class Damage(enum.StrEnum):
    """The classes of damage, as `verify` and `JournalDamaged` name them."""

    LENGTH = "length"  # a segment file has not the length it was made with
    HEADER = "header"  # a segment header fails its checksum
    FRAME = "frame"  # a frame that was acknowledged does not verify
    STRAY_BYTES = "stray_bytes"  # bytes where no write of the journal can have put them
    MISPLACED = "misplaced"  # a whole frame or file that belongs somewhere else
    CHAIN = "chain"  # checksums hold, the hash chain does not: somebody edited
    LINK = "link"  # two segments do not follow each other
    MISSING_SEGMENT = "missing_segment"
    BODY = "body"  # a frame verifies but does not hold what its header says
    PADDING = "padding"  # bytes that must be zero are not
    PACKED = "packed"  # a packed segment does not unpack to what was packed
    INDEX = "index"  # a seal disagrees with the frames it sums up


RESTORE: Final = "It can still be read up to this point; restore the file from a copy to write to it again."
# What a copy looks like whose files were read at different moments of a journal that was being written.
COPIED_LIVE: Final = "If this is a copy that was made while the run went on, pause the run and copy it again."


class JournalError(Exception):
    """Base of all journal errors; `what` is one clause, the rest is where and what next."""

    def __init__(
        self,
        what: str,
        *,
        path: Path | None = None,
        offset: int | None = None,
        seq: int | None = None,
        hint: str = "",
    ) -> None:
        self.what = what
        self.path = path
        self.offset = offset
        self.seq = seq
        self.hint = hint
        super().__init__(self._sentence())

    def _sentence(self) -> str:
        places = [
            f"file {self.path}" if self.path is not None else "",
            f"offset {self.offset}" if self.offset is not None else "",
            f"sequence number {self.seq}" if self.seq is not None else "",
        ]
        where = ", ".join(place for place in places if place)
        sentence = f"{self.what} ({where})." if where else f"{self.what}."
        return f"{sentence} {self.hint}" if self.hint else sentence


class JournalMissing(JournalError):
    """There is no journal where one was to be read."""


class JournalLocked(JournalError):
    """Another process writes this journal."""


class JournalDamaged(JournalError):
    """Bytes that were acknowledged, or may have been, do not verify. Opening for writing is refused."""

    def __init__(
        self,
        what: str,
        *,
        damage: Damage,
        path: Path | None = None,
        offset: int | None = None,
        seq: int | None = None,
        hint: str = RESTORE,
    ) -> None:
        self.damage = damage
        super().__init__(what, path=path, offset=offset, seq=seq, hint=hint)


class JournalTooNew(JournalError):
    """A newer version of the format, or a feature this program does not know, was used to write this journal."""


class JournalFailed(JournalError):
    """The journal is frozen: it can write no more, and nothing acknowledged is lost. Reopening may cure it."""

    def __init__(self, what: str, *, errno: int, reason: str, path: Path | None = None, seq: int | None = None) -> None:
        self.errno = errno
        self.reason = reason
        detail = reason.removeprefix(f"{what}: ")
        said = f"The cause: {detail}. " if detail and detail != what else ""
        hint = f"{said}Nothing acknowledged is lost; free space or repair the disk, then start again."
        super().__init__(what, path=path, seq=seq, hint=hint)

    def again(self) -> JournalFailed:
        """The same as a new error, so that tracebacks do not pile up on one."""
        return JournalFailed(self.what, errno=self.errno, reason=self.reason, path=self.path, seq=self.seq)


class JournalFull(JournalError):
    """There is no space for the next segment just now. Nothing was written; the same call succeeds when there is space."""

    def __init__(self, what: str, *, errno: int, path: Path | None = None, seq: int | None = None) -> None:
        self.errno = errno
        super().__init__(what, path=path, seq=seq, hint="Free space; the journal goes on by itself.")


class JournalClosed(JournalError):
    """The journal was closed, or is not begun yet, or belongs to the parent of a forked process."""


class BatchRefused(JournalError, ValueError):
    """The caller's batch or argument is outside the format's bounds; nothing was written."""


class FileSystemRefused(JournalError):
    """The journal would lie on a file system whose promises nobody tested."""
