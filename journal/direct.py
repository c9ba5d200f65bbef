"""Write past the page cache, if the file system can: one copy less, and no page in which an error could be lost.

O_DIRECT needs memory aligned to a page, and whole blocks of the device. A `FrameBuffer` is such memory, reused for
each write. `DirectWrites` sets the flag for each descriptor and remembers why it could not. Without the flag
everything works in the same way through the page cache: the flag affects the price, not a promise.
"""

from __future__ import annotations

import errno as errno_codes
import mmap
from typing import Final

from journal.files import Files, write_all

_FIRST_BYTES: Final = 1 << 16
_KEPT_BYTES_MAX: Final = 16 << 20


class FrameBuffer:
    """Memory to compose frames in; it begins at a page and grows as needed. For one thread."""

    def __init__(self) -> None:
        self._room = memoryview(b"")

    def room(self, length: int) -> memoryview:
        """At least `length` writable bytes, with whatever was there before. The next call may give the same ones."""
        if len(self._room) >= length:
            return self._room
        # Private: a forked child must not see, let alone change, what is about to be written.
        size = max(_FIRST_BYTES, 1 << (length - 1).bit_length())
        room = memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        if size <= _KEPT_BYTES_MAX:
            self._room = room
        return room


class DirectWrites:
    """Whether the descriptors of one journal write past the page cache; `refused` says why not, None while they do."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._given_up: str | None = None
        self.refused: str | None = None

    def turn_on(self, descriptor: int, block: int) -> bool:
        """Let this descriptor write past the page cache, in whole blocks. False where that does not work."""
        if self._given_up is not None:
            return False
        try:
            self._files.make_direct(descriptor, block)
        except OSError as error:
            self.refused = str(error)
            return False
        self.refused = None
        return True

    def note_failure(self, error: OSError) -> None:
        """A direct write failed: where the reason is that it was one, the next segments do without."""
        if error.errno == errno_codes.EINVAL:
            self._given_up = self.refused = str(error)


def write_frames(files: Files, descriptor: int, frames: memoryview, offset: int, *, direct: bool) -> None:
    """One write of whole frames that lie at the head of a FrameBuffer, or an OSError."""
    # Whoever stands in for the file system may keep what it is given; a buffer is written over, bytes are not.
    write_all(files, descriptor, frames if direct else bytes(frames), offset)
