"""The price of durability, printed; `make bench` runs it."""

from __future__ import annotations

import pytest

from tests.bench.journal_commit import group_rates, prices, replay_rate, table


@pytest.mark.bench
def test_the_price_of_a_commit_is_printed(tmp_path):
    """A table of commits beside the bare write and other stores, on the disk of the temporary folder."""
    took = prices(tmp_path, rounds=9, writes=200)
    rates = group_rates(tmp_path, rounds=9)
    rate = replay_rate(tmp_path)

    print("\n" + table(took, rates, rate))
    assert all(len(values) == 9 for values in [*took.values(), *rates.values()])
    assert rate > 0
