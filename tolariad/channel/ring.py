"""The step ring: fixed records in the shared page's file, one a step, because waking the other side is what a report costs.

A record carries its own running number and a checksum over everything else. The writer fills the record first and writes
the number last; the reader takes a record only when number and checksum are right, so neither a store seen late nor a
writer that dies amid a record can be mistaken for a step. Invariants: one writer, one reader; a slot is written again only
after its record was made durable (the writer keeps within `SLOTS` of the durable number). It must not know: sockets.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from tolariad.core.vocabulary.steps import StepReport

SLOTS: Final = 1024
SLOT_BYTES: Final = 96
_SLOT_WORDS: Final = SLOT_BYTES // 8
RING_BYTES: Final = SLOTS * SLOT_BYTES

# number | step, epoch, batch, loss, gradient norm, first rate, digest of the rates | CRC-32 of the middle and the number
_BODY: Final = struct.Struct("<QQQdddQ")
_CHECK: Final = struct.Struct("<I")
_BODY_AT: Final = 8
_CHECK_AT: Final = _BODY_AT + _BODY.size
_END_AT: Final = _CHECK_AT + _CHECK.size


class RingWriter:
    """The trainer's side."""

    def __init__(self, memory: memoryview, words: memoryview) -> None:
        """`words` is the same memory as unsigned 64-bit words."""
        self._memory = memory
        self._words = words
        self._count = 0

    def write(self, number: int, report: StepReport) -> None:
        """Put the report under its running number into the next slot."""
        slot = self._count % SLOTS
        at = slot * SLOT_BYTES
        memory = self._memory
        body = _BODY.pack(
            report.step, report.epoch, report.batch, report.loss, report.grad_norm, report.lr, report.rates
        )
        check = _CHECK.pack(zlib.crc32(body, number & 0xFFFF_FFFF))
        memory[at + _BODY_AT : at + _END_AT] = body + check
        # Last: only with this does the record exist.
        self._words[slot * _SLOT_WORDS] = number
        self._count += 1


class RingReader:
    """The daemon's side."""

    def __init__(self, memory: memoryview, words: memoryview) -> None:
        """`words` is the same memory as unsigned 64-bit words."""
        self._memory = memory
        self._words = words
        self._count = 0
        # Of a record that was there and not whole. Whoever waits for that one pauses: it may never become whole.
        self.spoilt = 0

    @property
    def next_number(self) -> tuple[memoryview, int]:
        """Where the next record's running number will appear: words, and the index among them."""
        return self._words, self._count % SLOTS * _SLOT_WORDS

    def holds(self, number: int) -> bool:
        """Whether the next slot carries this running number, and its record has not proved to be not whole."""
        return bool(self._words[self._count % SLOTS * _SLOT_WORDS] == number) and number != self.spoilt

    def waits(self, number: int) -> bool:
        """Whether the next slot carries this running number or a later one."""
        return bool(self._words[self._count % SLOTS * _SLOT_WORDS] >= number)

    def take(self, number: int) -> StepReport | None:
        """The report under this running number, if it is there whole; None where it is not (yet)."""
        slot = self._count % SLOTS
        if self._words[slot * _SLOT_WORDS] != number:
            return None
        at = slot * SLOT_BYTES
        # Read once: what is checked is what is taken.
        body = bytes(self._memory[at + _BODY_AT : at + _END_AT])
        if _CHECK.unpack_from(body, _BODY.size)[0] != zlib.crc32(body[: _BODY.size], number & 0xFFFF_FFFF):
            self.spoilt = number
            return None
        self._count += 1
        step, epoch, batch, loss, grad_norm, lr, rates = _BODY.unpack_from(body)
        return StepReport(step=step, epoch=epoch, batch=batch, loss=loss, grad_norm=grad_norm, lr=lr, rates=rates)
