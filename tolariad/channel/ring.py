"""The step ring: fixed records in the shared page's file, one a step, because waking the other side is what a report costs.

A record carries its own running number and a check over everything in it. The writer fills the record first and writes
the number last; the reader takes a record only when number and check are right, so neither a store seen late nor a
writer that dies amid a record can be mistaken for a step. Invariants: one writer, one reader, both of one interpreter; a slot
is written again only after its record was made durable (the writer keeps within `SLOTS` of the durable number). It must not
know: sockets.
"""

from __future__ import annotations

from typing import Final

from tolariad.core.vocabulary.steps import StepReport, StepValues, report_of

SLOTS: Final = 1024
SLOT_BYTES: Final = 96
_SLOT_WORDS: Final = SLOT_BYTES // 8
RING_BYTES: Final = SLOTS * SLOT_BYTES

# The words of a record: its number; step, epoch, batch; loss, gradient norm, first rate as doubles; the rates' digest; the check.
_MASK: Final = (1 << 64) - 1
# Stands for a value that is not a number: Python's hash of one is another in every process.
_NAN: Final = 0x7FF8


def _check(number: int, values: StepValues) -> int:
    """Over all of a record. Python's own hash of numbers is one call, and alike in all processes of an interpreter.

    Packing them and a checksum over that are three calls, each at 2.5 us where training has emptied the caches.
    """
    # Only what is not a number differs from itself, and a sum with one is none.
    total = values[3] + values[4] + values[5]
    if total == total:  # noqa: PLR0124
        return hash((number, values)) & _MASK
    plain = tuple((one == one, one if one == one else _NAN) for one in values)  # noqa: PLR0124
    return hash((number, plain)) & _MASK


class RingWriter:
    """The trainer's side."""

    def __init__(self, words: memoryview[int], doubles: memoryview[float]) -> None:
        """The same memory, as unsigned 64-bit words and as doubles."""
        self._words = words
        self._doubles = doubles
        self._count = 0

    def write(self, number: int, values: StepValues) -> None:
        """Put the step's report under its running number into the next slot."""
        at, words, doubles = self._count % SLOTS * _SLOT_WORDS, self._words, self._doubles
        (
            words[at + 1],
            words[at + 2],
            words[at + 3],
            doubles[at + 4],
            doubles[at + 5],
            doubles[at + 6],
            words[at + 7],
        ) = values
        words[at + 8] = _check(number, values)
        # Last: only with this does the record exist.
        words[at] = number
        self._count += 1


class RingReader:
    """The daemon's side."""

    def __init__(self, words: memoryview[int], doubles: memoryview[float]) -> None:
        """The same memory, as unsigned 64-bit words and as doubles."""
        self._words = words
        self._doubles = doubles
        self._count = 0
        # Of a record that was there and not whole. Whoever waits for that one pauses: it may never become whole.
        self.damaged_number = 0

    @property
    def next_slot(self) -> tuple[memoryview[int], int]:
        """Where the next record's running number will appear: words, and the index among them."""
        return self._words, self._count % SLOTS * _SLOT_WORDS

    def has_record(self, number: int) -> bool:
        """Whether the next slot carries this running number, and its record has not proved to be not whole."""
        return bool(self._words[self._count % SLOTS * _SLOT_WORDS] == number) and number != self.damaged_number

    def has_record_from(self, number: int) -> bool:
        """Whether the next slot carries this running number or a later one."""
        return bool(self._words[self._count % SLOTS * _SLOT_WORDS] >= number)

    def take(self, number: int) -> StepReport | None:
        """The report under this running number, if it is there whole; None where it is not (yet)."""
        at, words, doubles = self._count % SLOTS * _SLOT_WORDS, self._words, self._doubles
        if words[at] != number:
            return None
        # Read once: what is checked is what is taken.
        counted = words[at + 1], words[at + 2], words[at + 3]
        values = (*counted, doubles[at + 4], doubles[at + 5], doubles[at + 6], words[at + 7])
        if words[at + 8] != _check(number, values):
            self.damaged_number = number
            return None
        self._count += 1
        return report_of(values)
