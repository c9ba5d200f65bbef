"""The cost of durable writes and of reading, printed; `make bench` runs it."""

from __future__ import annotations

import pytest

from tests.bench import journal_commit, journal_reading


@pytest.mark.bench
def test_the_price_of_a_commit_is_printed(tmp_path):
    """Print a table of commits beside the bare write and other stores, on the temporary folder's disk."""
    took = journal_commit.prices(tmp_path, rounds=9, writes=200)
    beside = journal_commit.crowded(tmp_path, writes=1000)

    print("\n" + journal_commit.table(took, beside))
    assert all(len(values) == 9 for values in took.values())
    assert len(beside) == 2


@pytest.mark.bench
def test_the_price_of_reading_is_printed(tmp_path):
    """Print verifying, folding and columns, bytes a step, and memory for a journal of 1 GB."""
    journal_reading.make(tmp_path)
    found = journal_reading.rates(tmp_path, rounds=9)
    peak = journal_reading.memory(tmp_path, 1000)
    sizes = journal_reading.bytes_a_step(tmp_path)

    print("\n" + journal_reading.table(found, sizes, peak, 1000))
    assert all(len(values) == 9 for values in found.values())
    assert 0 < sizes[1] < sizes[0]
