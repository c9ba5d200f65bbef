"""Fault class 14: seeds of a simulated disk. Each seed repeats exactly."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.journal.faults.harness import told
from tests.journal.faults.simulator import simulate


def run(first: int, seeds: int) -> Counter[str]:
    """Simulate this many seeds from a drawn one on, and print each that loses or returns wrong events."""
    total: Counter[str] = Counter()
    for number in range(first, first + seeds):
        counts = simulate(number)
        if counts["lost"] or counts["wrong"] or counts["not clean at the end"]:
            print(f"simulator seed {number}: {dict(counts)}")
        total.update(counts)
    print(told(f"class 14, {seeds} seeds from {first}", first, total))
    return total


def check(total: Counter[str]) -> None:
    assert (total["lost"], total["wrong"], total["not clean at the end"]) == (0, 0, 0)
    # The disasters did happen.
    for what in ("power cuts", "kills", "errors", "lies", "frozen", "looks", "torn start", "refused: frame"):
        assert total[what] > 0, what


def test_a_hundred_seeds_of_disk_faults_lose_nothing_acknowledged(seed):
    """Torn, lost, misdirected writes, errors and crashes from 100 seeds: lost 0, wrong 0."""
    check(run(seed, 100))


@pytest.mark.torture
def test_ten_thousand_seeds_of_disk_faults_lose_nothing_acknowledged(seed):
    """The same with 10 000 seeds."""
    check(run(seed, 10_000))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_seed_repeats_exactly(number):
    """The seed of a failure leads to the same result again, call by call."""
    assert simulate(number) == simulate(number)
