"""The step ring: fixed records in the shared page's file, one a step. Waking the daemon is the main cost of a report.

A record carries its own number and a check over all of its values. The writer fills in the record first and writes the
number last. The reader takes a record only if number and check are right. So neither a store that becomes visible late
nor a writer that dies in the middle of a record can be mistaken for a step.

Invariants: one writer and one reader, of the same Python interpreter build. A slot is reused only after its record is
durable: the writer stays within `SLOTS` of the durable number.
"""

from __future__ import annotations

import struct
from typing import Final

from tolariad.channel.packets import ChannelError
from tolariad.core import messages as m
from tolariad.core.calc.bounds import COUNT_MAX, EPOCH_MAX, METRICS_MAX

# At 5 ms a step, 1024 slots hold the records of five seconds. If the ring is full, further steps go by the socket.
SLOTS: Final = 1024
SLOT_BYTES: Final = 96
_SLOT_WORDS: Final = SLOT_BYTES // 8
# The metrics of the records lie after all slots. A run without metrics never touches this memory, so it takes none.
_METRICS_AT: Final = SLOTS * SLOT_BYTES
_METRICS_BYTES: Final = 8 * METRICS_MAX
RING_BYTES: Final = _METRICS_AT + SLOTS * _METRICS_BYTES
# By their number. `doubles` is written in the machine's byte order too.
_DOUBLES: Final = tuple(struct.Struct(f"={count}d") for count in range(METRICS_MAX + 1))

# The words of a record: its number; step, epoch, batch; loss, gradient norm and first rate, as doubles. Then follow the
# digest of the rates, the check, the number of its metrics, and the digest of the batches.
_MASK: Final = (1 << 64) - 1
_DATA_MAX: Final = (1 << 32) - 1
# Replaces NaN in the check: hash(nan) depends on the object's address, so it differs between processes.
_NAN: Final = 0x7FF8


def _check(number: int, values: m.StepValues, metrics: tuple[float, ...], data: int) -> int:
    """Return the check of a record: Python's hash of its numbers, which is the same in every process of one build.

    The hash is one call. Packing the numbers and computing a CRC takes three calls, each 2.5 us when training has
    emptied the CPU caches.
    """
    # NaN is the only value that differs from itself, and a sum that contains NaN is NaN.
    total = values[3] + values[4] + values[5]
    plain: tuple[object, ...] = values
    if total != total:  # noqa: PLR0124
        plain = tuple((one == one, one if one == one else _NAN) for one in values)  # noqa: PLR0124
    if not metrics:
        return hash((number, plain, data)) & _MASK
    total = sum(metrics)
    if total == total:  # noqa: PLR0124
        return hash((number, plain, data, metrics)) & _MASK
    # A NaN is usual here: a metric that the step does not have. As one integer the bits have a hash of their own.
    bits = int.from_bytes(_DOUBLES[len(metrics)].pack(*metrics), "little")
    return hash((number, plain, data, len(metrics), bits)) & _MASK


class _Side:
    """One side of the ring, and how many records it has passed."""

    def __init__(self, words: memoryview[int], doubles: memoryview[float]) -> None:
        """`words` and `doubles` are two views of the same memory: unsigned 64-bit words, and doubles."""
        self._words = words
        self._doubles = doubles
        self._count = 0


class RingWriter(_Side):
    """The trainer's side of the ring."""

    def write(self, number: int, values: m.StepValues, metrics: tuple[float, ...] = (), data: int = 0) -> None:
        """Write the report of a step, under its number, into the next slot. The caller has checked that it is free."""
        at, words, doubles = self._count % SLOTS * _SLOT_WORDS, self._words, self._doubles
        step, epoch, batch, loss, norm, rate, digest = values
        words[at + 1], words[at + 2], words[at + 3], words[at + 7] = step, epoch, batch, digest
        doubles[at + 4], doubles[at + 5], doubles[at + 6] = loss, norm, rate
        words[at + 9] = count = len(metrics)
        words[at + 10] = data
        if count:
            _DOUBLES[count].pack_into(doubles, _METRICS_AT + self._count % SLOTS * _METRICS_BYTES, *metrics)
        words[at + 8] = _check(number, values, metrics, data)
        # Invariant: the number last. It is what makes the record visible to the reader.
        words[at] = number
        self._count += 1

    def newest(self, number: int) -> tuple[int, m.StepReport] | None:
        """Return the newest step whose number is at most `number`, with that; None if the ring holds none.

        Any thread may call this while steps are written.
        """
        reader = RingReader(self._words, self._doubles)
        for count in range(self._count - 1, max(self._count - SLOTS, 0) - 1, -1):
            found = self._words[count % SLOTS * _SLOT_WORDS]
            reader._count = count  # noqa: SLF001 - the other side of this ring
            if found <= number and (report := reader.take(found)) is not None:
                return found, report
        return None


class RingReader(_Side):
    """The daemon's side of the ring."""

    # The number of a record whose check was wrong. It may stay wrong for ever (its writer died), so a reader that polls
    # for it must sleep between attempts instead of spinning.
    damaged_number = 0

    @property
    def next_slot(self) -> tuple[memoryview[int], int]:
        """The place at which the number of the next record will appear: the words, and the index in them."""
        return self._words, self._count % SLOTS * _SLOT_WORDS

    def has_record(self, number: int) -> bool:
        """Return whether the next slot carries this number and its check was not found wrong."""
        return bool(self._words[self._count % SLOTS * _SLOT_WORDS] == number) and number != self.damaged_number

    def has_record_from(self, number: int) -> bool:
        """Return whether the next slot carries this number or a later one."""
        return bool(self._words[self._count % SLOTS * _SLOT_WORDS] >= number)

    def take(self, number: int) -> m.StepReport | None:
        """Return the report with this number, or None if its record is not complete (yet).

        Raises ChannelError if a count in it is out of its bounds.
        """
        at, words, doubles = self._count % SLOTS * _SLOT_WORDS, self._words, self._doubles
        if words[at] != number:
            return None
        # Read each word once: the values that were checked must be the values that are returned.
        counted = words[at + 1], words[at + 2], words[at + 3]
        values = (*counted, doubles[at + 4], doubles[at + 5], doubles[at + 6], words[at + 7])
        metrics: tuple[float, ...] = ()
        data = words[at + 10]
        if count := words[at + 9]:
            # More than there can be are the words of a record that is not complete.
            packing = _DOUBLES[min(count, METRICS_MAX)]
            metrics = packing.unpack_from(doubles, _METRICS_AT + self._count % SLOTS * _METRICS_BYTES)
        # The number is there but not all of the values: the writer's stores became visible in another order, or it
        # died in the middle. The next attempt may find the record complete.
        if words[at + 8] != _check(number, values, metrics, data) or count > METRICS_MAX:
            self.damaged_number = number
            return None
        step, epoch, batch = counted
        # The check is right, so the trainer itself wrote these counts. A value that no event can hold must not reach
        # `decide`.
        if step > COUNT_MAX or epoch > EPOCH_MAX or batch > COUNT_MAX or data > _DATA_MAX:
            raise ChannelError(
                f"step {step}, epoch {epoch}, batch {batch}, data {data} of a step's report are out of their bounds"
            )
        self._count += 1
        return m.report_of(values, metrics, data)
