"""Bits that flip in a live trainer's memory are named by step and tensor when its steps are made again."""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from tests.trainer.digests.flips import Found, Memory, Where, judged

FLIPS = int(os.environ.get("TOLARIA_FLIPS", "1000"))


@pytest.fixture
def rng():
    """A generator whose seed is printed; TOLARIA_SEED gives one."""
    seed = int(os.environ.get("TOLARIA_SEED", random.randrange(1 << 30)))
    print(f"TOLARIA_SEED={seed}")
    return random.Random(seed)


def campaign(rng, flips, clean_runs):
    """Return how many flips of each kind were found how, and how many runs without a flip seemed to differ."""
    memory = Memory()
    clean = memory.run()
    table = Counter()
    for _ in range(flips):
        flip = memory.drawn(rng)
        table[flip.where, judged(memory, clean, flip)] += 1
    alarms = sum(memory.again(memory.run()).first_difference is not None for _ in range(clean_runs))
    return table, alarms


def test_ten_flipped_bits(rng):
    """Each is named by its step, or left nothing behind: no digest and no number of a step differs."""
    table, alarms = campaign(rng, 10, 3)
    assert alarms == 0
    assert sum(count for (_, found), count in table.items() if found in (Found.WRONG, Found.MISSED)) == 0


@pytest.mark.torture
def test_a_thousand_flipped_bits(rng):
    """Parameters, moments and gradients; the table is printed. Most gradients and moments are named by tensor."""
    table, alarms = campaign(rng, FLIPS, FLIPS // 4)
    print(f"\n{'':10}" + "".join(f"{found.value:>24}" for found in Found))
    for where in Where:
        print(f"{where.value:10}" + "".join(f"{table[where, found]:>24}" for found in Found))
    print(f"false alarms in {FLIPS // 4} runs: {alarms}")
    assert alarms == 0
    assert sum(count for (_, found), count in table.items() if found in (Found.WRONG, Found.MISSED)) == 0
    assert all(table[where, Found.STEP_AND_TENSOR] > table[where, Found.NOTHING_LEFT] for where in Where)
