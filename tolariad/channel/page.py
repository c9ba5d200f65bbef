"""The shared page: one memory file that daemon and trainer both map, so "may I update?" costs a memory read.

The step ring lies behind the words in the same file.

Invariants: every word is eight aligned bytes, has exactly one writer and means something alone; no pair of words is ever
read as one fact. Aligned eight-byte stores are single on the machines torch runs on; where order between words would
matter, the reader looks twice (the gate in the trainer). The page starts frozen. It must not know: reports or orders.
"""

from __future__ import annotations

import enum
import mmap
import os
from typing import Final

import msgspec

from tolariad.channel.ring import RING_BYTES

_WORDS_BYTES: Final = 4096
PAGE_BYTES: Final = _WORDS_BYTES + RING_BYTES
_MAGIC: Final = 0x31_45_47_41_50_4C_4F_54  # "TOLPAGE1", little-endian

# Words 0..15 are written by the daemon, 16..31 by the trainer: apart, so that neither pulls the other's cache line.
_W_MAGIC, _W_INCARNATION, _W_DURABLE, _W_FROZEN, _W_EMERGENCY, _W_ORDERS, _W_ASLEEP, _W_LAG_NS = range(8)
_W_WAITING, _W_STEP, _W_BEAT_NS, _W_ACTIVITY, _W_POSTED = range(16, 21)
# The gate's word. Halted is shut for whatever would change the model, the repetition of what is recorded included.
_OPEN, _SHUT, _HALTED = range(3)


class Activity(enum.IntEnum):
    """What the trainer is doing; a hang is judged against what this activity usually takes."""

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
    """The trainer's last sign of life. `mono_ns` is its CLOCK_MONOTONIC (the same for every process of a boot)."""

    step: int
    mono_ns: int
    activity: Activity


class Page:
    """One incarnation's page. Daemon: `create`; trainer: `attach` to the inherited descriptor."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, PAGE_BYTES)
        whole = memoryview(self._map)
        self._words = whole[:_WORDS_BYTES].cast("Q")
        self.ring_words = whole[_WORDS_BYTES:].cast("Q")
        self.ring_doubles = whole[_WORDS_BYTES:].cast("d")

    @classmethod
    def create(cls, incarnation: int) -> Page:
        """A new page, frozen, for the trainer with this incarnation number."""
        descriptor = os.memfd_create("tolaria-page", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, PAGE_BYTES)
        page = cls(descriptor)
        page._words[_W_FROZEN] = _SHUT
        page._words[_W_INCARNATION] = incarnation
        page._words[_W_MAGIC] = _MAGIC
        return page

    @classmethod
    def attach(cls, descriptor: int) -> Page:
        """Map the page behind an inherited descriptor. Raises ValueError where it is something else."""
        page = cls(descriptor)
        if page._words[_W_MAGIC] != _MAGIC:
            raise ValueError(f"descriptor {descriptor} is not a tolaria page; start the trainer through tolariad")
        return page

    def close(self) -> None:
        """Unmap and close; the memory lives on while the other side maps it."""
        self._words.release()
        self.ring_words.release()
        self.ring_doubles.release()
        self._map.close()
        os.close(self.descriptor)

    @property
    def incarnation(self) -> int:
        """The incarnation this page was made for."""
        return self._words[_W_INCARNATION]

    # -- the daemon's words --------------------------------------------------------------------------------------------

    @property
    def durable(self) -> int:
        """Number of the last report whose event is on disk."""
        return self._words[_W_DURABLE]

    def set_durable(self, number: int) -> None:
        """Daemon only."""
        self._words[_W_DURABLE] = number

    @property
    def frozen(self) -> bool:
        """No update may begin while this holds."""
        return self._words[_W_FROZEN] != _OPEN

    @property
    def halted(self) -> bool:
        """Frozen for good: steps are not run again either. One shut only until the first checkpoint is there lets them."""
        return self._words[_W_FROZEN] == _HALTED

    def allows_update_after(self, number: int) -> bool:
        """Report `number` is durable and nothing is frozen, in one look.

        The flag is read last: the daemon freezes before it shows what it froze for, so whoever sees that number sees it.
        """
        words = self._words
        return words[_W_DURABLE] >= number and words[_W_FROZEN] == _OPEN

    def needs_attention(self, taken: int) -> bool:
        """Frozen, or more orders were sent than the `taken` ones, in one look."""
        words = self._words
        return words[_W_FROZEN] != _OPEN or words[_W_ORDERS] > taken

    def freeze(self) -> None:
        """Daemon only: no update begins from here on; one in progress ends. Steps that are run again may go on."""
        self._words[_W_FROZEN] = _SHUT

    def halt(self) -> None:
        """Daemon only: the same, and no step is run again."""
        self._words[_W_FROZEN] = _HALTED

    def thaw(self) -> None:
        """Daemon only."""
        self._words[_W_FROZEN] = _OPEN

    @property
    def orders(self) -> int:
        """How many orders were ever sent: more than were taken means that one waits."""
        return self._words[_W_ORDERS]

    def set_orders(self, count: int) -> None:
        """Daemon only, after the order is in the socket."""
        self._words[_W_ORDERS] = count

    @property
    def asleep(self) -> bool:
        """The daemon sleeps and wants to be woken by a packet when a record is in the ring."""
        return self._words[_W_ASLEEP] != 0

    def set_asleep(self, asleep: int) -> None:
        """Daemon only: 1 before it looks at the ring for the last time, 0 when it is awake again."""
        self._words[_W_ASLEEP] = asleep

    @property
    def lag_ns(self) -> int:
        """How long a step's report may be on its way to the disk before the next update must wait for it."""
        return self._words[_W_LAG_NS]

    def set_lag_ns(self, lag_ns: int) -> None:
        """Daemon only."""
        self._words[_W_LAG_NS] = lag_ns

    # -- the trainer's words -------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """The trainer stands at a closed gate."""
        return self.awaited != 0

    @property
    def awaited(self) -> int:
        """The report number that the trainer stands at a closed gate for; 0 where it does not."""
        return self._words[_W_WAITING]

    def set_waiting(self, number: int) -> None:
        """Trainer only: the report number it waits for, 0 where it does not wait."""
        self._words[_W_WAITING] = number

    @property
    def posted(self) -> int:
        """How many reports ever went to the socket: more than were received means that one waits there."""
        return self._words[_W_POSTED]

    def set_posted(self, count: int) -> None:
        """Trainer only, after the report was handed to the socket."""
        self._words[_W_POSTED] = count

    def beat(self, step: int, mono_ns: int, activity: Activity) -> None:
        """Trainer only. The time is written last: a beat that is new is a beat whose step was already there."""
        words = self._words
        words[_W_STEP] = step
        words[_W_ACTIVITY] = activity
        words[_W_BEAT_NS] = mono_ns

    @property
    def heartbeat(self) -> Heartbeat:
        """The last beat; three words read one by one, so they may belong to two neighbouring beats."""
        words = self._words
        return Heartbeat(words[_W_STEP], words[_W_BEAT_NS], Activity(words[_W_ACTIVITY]))
