"""The shared page: a memory file that daemon and trainer both map, so that "may I update?" costs one memory read.

The step ring lies after the words, in the same file.

Invariants: each word is eight aligned bytes, has one writer, and has a meaning of its own. No two words are ever read
as one fact. An aligned store of eight bytes is atomic on every machine that torch supports. If the order of two words
matters, the writer fixes the order of its stores. The reader then reads them in the reverse order, or reads twice (the
trainer's gate). A new page is frozen.
"""

from __future__ import annotations

import enum
import fcntl
import mmap
import os
from typing import Final

import msgspec

from tolariad.channel.ring import RING_BYTES

_WORDS_BYTES: Final = 4096
PAGE_BYTES: Final = _WORDS_BYTES + RING_BYTES
# Shows a wrong descriptor at the start, instead of a trainer that reads other bytes as its gate.
_MAGIC: Final = 0x31_45_47_41_50_4C_4F_54  # "TOLPAGE1", little-endian

# The daemon writes words 0..15, the trainer words 16..31: on separate cache lines, so neither side slows the other's
# stores.
_W_MAGIC, _W_INCARNATION, _W_DURABLE, _W_FROZEN, _W_EMERGENCY, _W_ORDERS, _W_ASLEEP, _W_LAG_NS = range(8)
_W_DAEMON, _W_RECORDER, _W_WRITE_NS = range(8, 11)
_W_WAITING, _W_STEP, _W_BEAT_NS, _W_ACTIVITY, _W_POSTED, _W_BEHIND = range(16, 22)
# Values of the gate's word. Shut: no new update, but steps that the journal holds may be re-run. Halted: nothing that
# changes the model, re-runs included.
_OPEN, _SHUT, _HALTED = range(3)


class Activity(enum.IntEnum):
    """The trainer's present activity. Each activity has its own limit before silence counts as a hang."""

    IMPORT = 0
    BUILD = 1
    RESTORE = 2
    STEP = 3
    GATE = 4
    HELD = 5
    VALIDATE = 6
    CHECKPOINT = 7
    RERUN = 8
    END = 9
    DATA = 10
    HOOK = 11
    COMPILE = 12


class Heartbeat(msgspec.Struct, frozen=True):
    """The trainer's last sign of life. `mono_ns`: CLOCK_MONOTONIC, which all processes of a boot share."""

    step: int
    mono_ns: int
    activity: Activity


class Page:
    """The page of one incarnation. The daemon calls `create`, the trainer `attach` (to the inherited descriptor)."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        # A shared mapping, the default: both processes see each store at once, without a system call.
        self._map = mmap.mmap(descriptor, PAGE_BYTES)
        # Views of whole words: each store is one aligned store of the machine, and not a copy byte by byte.
        whole = memoryview(self._map)
        self._words = whole[:_WORDS_BYTES].cast("Q")
        self.ring_words = whole[_WORDS_BYTES:].cast("Q")
        self.ring_doubles = whole[_WORDS_BYTES:].cast("d")

    @classmethod
    def create(cls, incarnation: int) -> Page:
        """Make a page, frozen, for the trainer with this incarnation number."""
        descriptor = os.memfd_create("tolaria-page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        # The file gets its full length before anybody maps it, and keeps it, whatever the trainer's code does: touching
        # a page beyond its end would kill the process by SIGBUS.
        os.ftruncate(descriptor, PAGE_BYTES)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        page = cls(descriptor)
        # Frozen first: a trainer must not update before the kernel has recorded its start and opened the gate.
        page._words[_W_FROZEN] = _SHUT
        page._words[_W_INCARNATION] = incarnation
        page._words[_W_DAEMON] = os.getpid()
        # The magic number last: a page that has it is complete.
        page._words[_W_MAGIC] = _MAGIC
        return page

    @classmethod
    def attach(cls, descriptor: int) -> Page:
        """Map the page of an inherited descriptor. Raises ValueError if the descriptor is not a page."""
        # A number came with the command line: the descriptor behind it may be of any other file.
        page = cls(descriptor)
        if page._words[_W_MAGIC] != _MAGIC:
            raise ValueError(f"descriptor {descriptor} is not a tolaria page; start the trainer through tolariad")
        return page

    def close(self) -> None:
        """Unmap and close. The memory stays until the other side unmaps it too."""
        # Views before the map: a map with live views cannot be closed.
        self._words.release()
        self.ring_words.release()
        self.ring_doubles.release()
        self._map.close()
        os.close(self.descriptor)

    @property
    def incarnation(self) -> int:
        """The incarnation that this page was made for."""
        return self._words[_W_INCARNATION]

    # -- the daemon's words --------------------------------------------------------------------------------------------

    @property
    def durable(self) -> int:
        """Number of the last report whose events are on disk."""
        return self._words[_W_DURABLE]

    def set_durable(self, number: int) -> None:
        """Daemon only. Set the gate first: see `allows_update_after`."""
        self._words[_W_DURABLE] = number

    @property
    def frozen(self) -> bool:
        """No update may begin while this is true."""
        return self._words[_W_FROZEN] != _OPEN

    @property
    def halted(self) -> bool:
        """Frozen for re-runs too. A gate that is only shut lets steps be re-run that the journal holds."""
        return self._words[_W_FROZEN] == _HALTED

    def allows_update_after(self, number: int) -> bool:
        """Return whether report `number` is durable and the gate is open."""
        # Invariant: the daemon stores the gate, then the number; this reads the number, then the gate. So a trainer
        # that sees the report that froze the run also sees the freeze.
        words = self._words
        return words[_W_DURABLE] >= number and words[_W_FROZEN] == _OPEN

    def needs_attention(self, taken: int) -> bool:
        """Return whether the gate is not open, or more than `taken` orders were sent."""
        words = self._words
        # Called at every boundary: two reads of memory instead of a system call for each step.
        return words[_W_FROZEN] != _OPEN or words[_W_ORDERS] > taken

    def freeze(self) -> None:
        """Daemon only. No new update begins; one in progress ends. Re-runs continue."""
        self._words[_W_FROZEN] = _SHUT

    def halt(self) -> None:
        """Daemon only. As `freeze`, and no step is re-run either."""
        self._words[_W_FROZEN] = _HALTED

    def thaw(self) -> None:
        """Daemon only. Open the gate."""
        self._words[_W_FROZEN] = _OPEN

    @property
    def orders(self) -> int:
        """How many orders were ever sent. If more than were taken, an order is pending."""
        return self._words[_W_ORDERS]

    def set_orders(self, count: int) -> None:
        """Daemon only, after the order is in the socket: the trainer reads the socket when it sees the count."""
        self._words[_W_ORDERS] = count

    @property
    def asleep(self) -> bool:
        """The daemon sleeps: send it a packet after writing a record into the ring."""
        return self._words[_W_ASLEEP] != 0

    def set_asleep(self, asleep: int) -> None:
        """Daemon only. 1 before it checks the ring for the last time, 0 when it is awake again."""
        self._words[_W_ASLEEP] = asleep

    @property
    def lag_ns(self) -> int:
        """How old, in ns, an undurable step may be before the next update waits for it. 0: every update waits."""
        return self._words[_W_LAG_NS]

    def set_lag_ns(self, lag_ns: int) -> None:
        """Daemon only. 0 unless step reports may be held back."""
        self._words[_W_LAG_NS] = lag_ns

    @property
    def write_ns(self) -> int:
        """How long the last durable write of the journal took, in ns; 0 before the first one."""
        return self._words[_W_WRITE_NS]

    def set_write_ns(self, write_ns: int) -> None:
        """Daemon only."""
        self._words[_W_WRITE_NS] = write_ns

    @property
    def threads(self) -> tuple[int, int]:
        """The daemon's threads that an epoch's end waits for: the main one and the kernel's, by the system's ids."""
        return self._words[_W_DAEMON], self._words[_W_RECORDER]

    def set_recorder(self, thread: int) -> None:
        """Daemon only. The id of the kernel's thread."""
        self._words[_W_RECORDER] = thread

    # -- the trainer's words -------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """The trainer waits at its gate."""
        return self.awaited != 0

    @property
    def awaited(self) -> int:
        """Number of the report that the trainer waits for at its gate, or 0."""
        return self._words[_W_WAITING]

    def set_waiting(self, number: int) -> None:
        """Trainer only. The number of the report it waits for, or 0."""
        self._words[_W_WAITING] = number

    @property
    def posted(self) -> int:
        """How many reports were ever sent by the socket. If more than were received, one is pending there."""
        return self._words[_W_POSTED]

    def set_posted(self, count: int) -> None:
        """Trainer only, after the report is in the socket."""
        self._words[_W_POSTED] = count

    @property
    def behind(self) -> int:
        """The rank for which all other ranks of this trainer wait; 0: they wait for none, or for rank 0."""
        return self._words[_W_BEHIND]

    def set_behind(self, rank: int) -> None:
        """Trainer only. See `behind`."""
        self._words[_W_BEHIND] = rank

    def beat(self, step: int, mono_ns: int, activity: Activity) -> None:
        """Trainer only. Record a sign of life."""
        words = self._words
        words[_W_STEP] = step
        words[_W_ACTIVITY] = activity
        # The time last: a reader that sees the new time also sees its step and activity.
        words[_W_BEAT_NS] = mono_ns

    @property
    def heartbeat(self) -> Heartbeat:
        """The last beat. Its three words are read one by one, so they may mix two consecutive beats."""
        words = self._words
        return Heartbeat(words[_W_STEP], words[_W_BEAT_NS], Activity(words[_W_ACTIVITY]))
