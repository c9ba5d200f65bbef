"""The step ring: complete records or none, in order, across the end of the ring, also from another process."""

from __future__ import annotations

import mmap
import os
import random
import struct

import hypothesis
import pytest
from hypothesis import strategies

from tolariad.channel.ring import RING_BYTES, SLOT_BYTES, SLOTS, RingReader, RingWriter
from tolariad.core import messages as m
from tolariad.core.calc.bounds import METRICS_MAX


def values(step: int) -> m.StepValues:
    return (step, 1, step, 1 / step, float(step), 0.1, 2**64 - step)


def report(step: int) -> m.StepReport:
    return m.report_of(values(step))


@pytest.fixture
def memory():
    area = mmap.mmap(-1, RING_BYTES)
    return memoryview(area)


def test_the_newest_step_up_to_a_number_is_found(memory):
    """Numbers of other reports lie between; more than one round, and nothing of what is newer."""
    writer = RingWriter(memory.cast("Q"), memory.cast("d"))
    assert writer.newest(1) is None
    for number in range(2, 4 * SLOTS, 2):
        writer.write(number, values(number))
    last = 4 * SLOTS - 2

    assert writer.newest(last + 5) == (last, report(last))
    assert writer.newest(last - 1) == (last - 2, report(last - 2))
    assert writer.newest(last - 2 * SLOTS) is None


def test_what_is_written_is_read_in_order_over_the_end_of_the_ring(memory):
    """Two rounds, with the reader close to the writer."""
    writer, reader = RingWriter(memory.cast("Q"), memory.cast("d")), RingReader(memory.cast("Q"), memory.cast("d"))
    for number in range(1, 2 * SLOTS + 3):
        assert reader.take(number) is None
        writer.write(number, values(number))
        assert reader.take(number) == report(number)


def test_numbers_that_went_another_way_are_skipped(memory):
    """The number counts every report, but only steps take a slot."""
    writer, reader = RingWriter(memory.cast("Q"), memory.cast("d")), RingReader(memory.cast("Q"), memory.cast("d"))
    for number in (3, 4, 9):
        writer.write(number, values(number))

    assert reader.take(1) is None
    assert [reader.take(number) for number in (3, 4)] == [report(3), report(4)]
    assert reader.take(5) is None
    assert reader.take(9) == report(9)


def test_a_record_with_any_byte_wrong_is_not_taken(memory):
    """Its writer may have died in the middle, or another one wrote to the wrong place."""
    RingWriter(memory.cast("Q"), memory.cast("d")).write(7, values(7))
    whole = bytes(memory[:SLOT_BYTES])
    for at in range(72):
        memory[at] ^= 0x40
        assert RingReader(memory.cast("Q"), memory.cast("d")).take(7) is None, at
        memory[at] = whole[at]
    assert RingReader(memory.cast("Q"), memory.cast("d")).take(7) == report(7)


@hypothesis.given(strategies.lists(strategies.lists(strategies.floats(width=64), max_size=METRICS_MAX), max_size=9))
def test_metrics_of_any_number_and_kind_pass_bit_for_bit(rows):
    """Also none after some, and NaN with any bits; a slot is used again after a whole round."""
    memory = memoryview(mmap.mmap(-1, RING_BYTES))
    writer, reader = RingWriter(memory.cast("Q"), memory.cast("d")), RingReader(memory.cast("Q"), memory.cast("d"))
    writer._count = reader._count = SLOTS - 2
    for number, row in enumerate(rows, 1):
        writer.write(number, values(number), tuple(row))
        taken = reader.take(number)
        assert taken is not None
        assert struct.pack(f"{len(row)}d", *taken.metrics) == struct.pack(f"{len(row)}d", *row)
        assert m.report_of(values(number), taken.metrics) == taken


@pytest.mark.parametrize("count", [1, 4, METRICS_MAX])
def test_a_record_with_any_byte_of_its_metrics_wrong_is_not_taken(memory, count):
    """Their number is checked too, and a number beyond the bound reads nothing from another record."""
    row = tuple(float(n % 3) for n in range(count))
    RingWriter(memory.cast("Q"), memory.cast("d")).write(7, values(7), row)
    first = SLOTS * SLOT_BYTES
    for at in (*range(80), *range(first, first + 8 * count)):
        memory[at] ^= 0x40
        assert RingReader(memory.cast("Q"), memory.cast("d")).take(7) is None, at
        memory[at] ^= 0x40
    taken = RingReader(memory.cast("Q"), memory.cast("d")).take(7)
    assert taken is not None
    assert taken.metrics == row


def test_the_digest_of_the_batches_passes_and_is_checked_too(memory):
    """With metrics and without; another one is not taken for it."""
    writer, reader = RingWriter(memory.cast("Q"), memory.cast("d")), RingReader(memory.cast("Q"), memory.cast("d"))
    for number, metrics in enumerate(((), (0.5,), (float("nan"),)), 1):
        writer.write(number, values(number), metrics, 2**32 - number)
        at = (number - 1) * SLOT_BYTES + 80
        memory[at] ^= 1
        assert reader.take(number) is None
        memory[at] ^= 1
        assert reader.take(number).data == 2**32 - number


def test_a_record_of_the_round_before_is_not_taken_for_this_one(memory):
    """A stale slot has an older number."""
    writer, reader = RingWriter(memory.cast("Q"), memory.cast("d")), RingReader(memory.cast("Q"), memory.cast("d"))
    for number in range(1, SLOTS + 1):
        writer.write(number, values(number))
        reader.take(number)

    assert reader.take(SLOTS + 1) is None


def test_non_finite_numbers_pass_unchanged(memory):
    """A step with a NaN is reported like any other."""
    writer, reader = RingWriter(memory.cast("Q"), memory.cast("d")), RingReader(memory.cast("Q"), memory.cast("d"))
    nan, inf = float("nan"), float("inf")
    for number, odd in enumerate(((nan, inf, 0.0), (inf, -inf, 0.1), (0.0, nan, nan), (-0.0, 0.0, inf)), 1):
        writer.write(number, (1, 1, 1, *odd, 0))
        taken = reader.take(number)
        assert taken is not None
        assert list(map(str, (taken.loss, taken.grad_norm, taken.lr))) == list(map(str, odd))


def test_what_is_not_a_number_is_checked_as_everything_else(memory):
    """The hash of a NaN differs in every process, so the check replaces it; it still differs from a number."""
    writer, nan = RingWriter(memory.cast("Q"), memory.cast("d")), float("nan")
    writer.write(1, (1, 1, 1, nan, 2.0, 0.1, 5))
    memory.cast("d")[5] = nan

    assert RingReader(memory.cast("Q"), memory.cast("d")).take(1) is None


def test_another_process_reads_every_record_whole_while_it_is_written(memory, seed):
    """A child writes, the test reads, with drawn pauses on both sides."""
    draw = random.Random(seed)
    count = 4 * SLOTS
    area = mmap.mmap(-1, RING_BYTES + 8)
    ring = memoryview(area)[:RING_BYTES]
    taken_word = memoryview(area)[RING_BYTES:].cast("Q")
    child = os.fork()
    if child == 0:
        writer = RingWriter(ring.cast("Q"), ring.cast("d"))
        for number in range(1, count + 1):
            while number - taken_word[0] >= SLOTS:
                os.sched_yield()
            writer.write(number, values(number))
        os._exit(0)
    reader = RingReader(ring.cast("Q"), ring.cast("d"))
    for number in range(1, count + 1):
        while (taken := reader.take(number)) is None:
            os.sched_yield()
        assert taken == report(number)
        taken_word[0] = number
        if draw.random() < 0.01:
            os.sched_yield()
    assert os.waitpid(child, 0)[1] == 0
