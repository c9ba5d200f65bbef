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

# The frame of a usual turn fits, so the buffer grows only for captures and large turns.
_FIRST_BYTES: Final = 1 << 16
_KEPT_BYTES_MAX: Final = 16 << 20


class FrameBuffer:
    """Memory to compose frames in; it begins at a page and grows as needed. For one thread."""

    def __init__(self) -> None:
        self._room = memoryview(b"")

    def room(self, length: int) -> memoryview:
        """Return at least `length` writable bytes with unknown content. The next call may return the same memory."""
        if len(self._room) >= length:
            return self._room
        # MAP_PRIVATE: a forked child gets a copy, so it cannot change a frame that its parent is about to write.
        # A power of two, so that the buffer is rarely replaced while frames grow.
        size = max(_FIRST_BYTES, 1 << (length - 1).bit_length())
        room = memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        # A large capture is rare. Its memory is returned to the system instead of being kept for the whole run.
        if size <= _KEPT_BYTES_MAX:
            self._room = room
        return room


class DirectWrites:
    """Turns O_DIRECT on for the descriptors of one journal. `refused` is the reason if it is off, else None."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._given_up: str | None = None
        self.refused: str | None = None

    def turn_on(self, descriptor: int, block: int) -> bool:
        """Make this descriptor write past the page cache, in whole blocks. Return False if that does not work."""
        if self._given_up is not None:
            return False
        try:
            self._files.make_direct(descriptor, block)
        except OSError as error:
            # Keep trying with later segments: another file may be on a device that can. Only EINVAL on a write turns
            # it off for good.
            self.refused = str(error)
            return False
        self.refused = None
        return True

    def note_failure(self, error: OSError) -> None:
        """Handle a failed direct write. If O_DIRECT was the reason, later segments do without it."""
        # EINVAL is how the kernel refuses the alignment or the flag. Other errors concern the disk and would occur
        # either way.
        if error.errno == errno_codes.EINVAL:
            self._given_up = self.refused = str(error)


def write_frames(files: Files, descriptor: int, frames: memoryview, offset: int, *, direct: bool) -> None:
    """Write whole frames from the head of a FrameBuffer with one write. Raises OSError."""
    # The buffer is reused for the next frame. A test's file system may keep what it is given, so it gets a copy.
    write_all(files, descriptor, frames if direct else bytes(frames), offset)
