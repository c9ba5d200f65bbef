"""The price of a commit, printed; `make bench` runs it."""

from __future__ import annotations

import pytest

from tests.bench.journal_commit import prices, replay_rate, table


@pytest.mark.bench
def test_the_price_of_a_commit_is_printed(tmp_path):
    """A table of commits beside the bare write, on the disk of the temporary folder."""
    took = prices(tmp_path, rounds=5, writes=500)
    rate = replay_rate(tmp_path)

    print("\n" + table(took, rate))
    assert all(len(values) == 2500 for values in took.values())
    assert rate > 0
