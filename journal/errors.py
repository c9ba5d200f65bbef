"""The errors of the journal. Each one says what went wrong, where, and what to do next.

Every error is a `JournalError`. Its text is a full sentence with file, offset and sequence number. Programs find the
same facts in its fields. There are only as many classes as callers need: to try again later, to refuse to start, or to
freeze.
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Final


class Damage(enum.StrEnum):
    """The classes of damage, as `verify` and `JournalDamaged` name them."""

    # The values are printed by `verify --json` and compared by scripts, so they are never renamed.
    LENGTH = "length"  # a segment file does not have the length that it was created with
    HEADER = "header"  # a segment header fails its checksum
    FRAME = "frame"  # a frame that was acknowledged does not verify
    STRAY_BYTES = "stray_bytes"  # bytes at a place where no write of the journal can have put them
    MISPLACED = "misplaced"  # an intact frame or file that belongs to another place
    CHAIN = "chain"  # checksums are right but the hash chain is not: somebody edited the file
    LINK = "link"  # a segment's header does not match the end of its predecessor
    MISSING_SEGMENT = "missing_segment"
    BODY = "body"  # a frame verifies but does not contain what its header says
    PADDING = "padding"  # bytes that must be zero are not
    PACKED = "packed"  # a packed segment does not unpack to what was packed
    INDEX = "index"  # a seal, a table or the running maxima disagree with the frames


# An acknowledged frame that cannot be read any more. Any reader may find it.
UNREADABLE: Final = "an acknowledged frame does not verify"
RESTORE: Final = "The journal can still be read up to this point. To write to it again, restore the file from a copy."
# A copy made while a writer is active takes its files at different moments. It then looks like a damaged journal.
COPIED_LIVE: Final = "If this is a copy made while the run was active, pause the run and copy the journal again."


class JournalError(Exception):
    """Base class of all journal errors. `what` is one clause; the other fields say where, and `hint` what to do."""

    def __init__(
        self,
        what: str,
        *,
        path: Path | None = None,
        offset: int | None = None,
        seq: int | None = None,
        hint: str = "",
    ) -> None:
        # Keep the parts: programs read them, and `JournalFailed.again` builds the same error anew.
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
    """There is no journal to read in this folder."""


class JournalLocked(JournalError):
    """Another process has the journal open for writing."""


class JournalDamaged(JournalError):
    """Bytes do not verify that were acknowledged, or may have been. The journal refuses to open for writing."""

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
    """The journal was written in a newer version of the format, or with a feature that this program does not know."""


class JournalFailed(JournalError):
    """The journal is frozen and accepts no more writes. No acknowledged event is lost. Opening it again may help."""

    def __init__(self, what: str, *, errno: int, reason: str, path: Path | None = None, seq: int | None = None) -> None:
        self.errno = errno
        self.reason = reason
        # `freeze` begins its reason with `what`. The sentence must not say it twice.
        detail = reason.removeprefix(f"{what}: ")
        said = f"The cause: {detail}. " if detail and detail != what else ""
        hint = f"{said}No acknowledged event is lost. Free space or repair the disk, then start again."
        super().__init__(what, path=path, seq=seq, hint=hint)

    def again(self) -> JournalFailed:
        """Return a new error with the same content, so that each raise has a traceback of its own."""
        return JournalFailed(self.what, errno=self.errno, reason=self.reason, path=self.path, seq=self.seq)


class JournalFull(JournalError):
    """The disk has no space for the next segment. Nothing was written. Repeat the call after space was freed."""

    def __init__(self, what: str, *, errno: int, path: Path | None = None, seq: int | None = None) -> None:
        self.errno = errno
        super().__init__(what, path=path, seq=seq, hint="Free space; the journal then continues by itself.")


class JournalClosed(JournalError):
    """The journal is closed, `begin` was not called yet, or it belongs to the parent of a forked process."""


class BatchRefused(JournalError, ValueError):
    """The caller's batch or argument is outside the format's bounds. Nothing was written."""


class FileSystemRefused(JournalError):
    """The journal's folder is on a file system for which durable writes have not been tested."""
