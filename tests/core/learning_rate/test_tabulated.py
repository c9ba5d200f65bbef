"""A function's values are packed and unpacked bit for bit, and nothing that comes in their place is an error."""

from __future__ import annotations

import base64
import math
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tolariad.core.calc.learning_rate.curve import rate
from tolariad.core.calc.learning_rate.schedule import LRPolicy, Schedule
from tolariad.core.calc.learning_rate.tabulated import (
    PACKED_MAX,
    STEPS_MAX,
    Tabulated,
    factors_of,
    packed,
    table_refusal,
    unpacked,
)


def table(factors, **other):
    given = {"source": "a.py:f", "hash": "ab", "steps": len(factors), "packed": packed(factors)}
    return Tabulated(**{**given, **other})


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_every_float_comes_back_with_its_bits(factors):
    """Also -0.0, subnormal numbers and neighbours that differ in one bit."""
    assert [one.hex() for one in unpacked(packed(factors), len(factors))] == [one.hex() for one in factors]


def test_the_usual_functions_of_long_runs_fit():
    """A smooth one takes a few bytes a step, and one with stairs nearly nothing: a million steps fit."""
    steps = 100_000
    smooth = packed([0.5 * (1.0 + math.cos(math.pi * step / steps)) for step in range(steps)])
    stairs = packed([0.3 ** (step // 7000) for step in range(steps)])

    assert len(smooth) < 90_000
    assert len(stairs) < 2_000
    assert len(smooth) * STEPS_MAX / steps < 1.4 * PACKED_MAX  # the longer, the fewer bytes a step


@given(st.one_of(st.text(max_size=40), st.binary(max_size=40).map(lambda raw: base64.b64encode(raw).decode())))
def test_text_of_another_origin_holds_no_values(text):
    """Nothing is raised, whatever it is: the kernel computes rates of tables that a trainer sent."""
    assert len(unpacked(text, 3)) in (0, 3)


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "not base64!",
        packed([1.0, 2.0]),
        packed([1.0] * 4),
        base64.b64encode(b"\x00" + zlib.compress(bytes(100_000_000))).decode(),
        base64.b64encode(b"\x09" + zlib.compress(bytes(24))).decode(),
    ],
    ids=["empty", "no base64", "too few", "too many", "a bomb", "an unknown order"],
)
def test_a_table_that_does_not_hold_its_steps_is_refused_and_gives_no_rate(wrong):
    """It is refused as an order; of a trainer's, the rate is 0, which no step used."""
    broken = table([1.0, 2.0, 3.0], packed=wrong)
    schedule = Schedule(policy=LRPolicy.FUNCTION, base_lr=0.1, total_steps=3, function=broken)

    assert list(factors_of(broken)) == []
    assert rate(schedule, 2) == 0.0
    assert "has 0 steps, and the schedule has 3" in str(table_refusal(broken, 3))


def test_values_that_are_no_rates_are_refused_with_their_step():
    """Negative, not finite, or beyond what a rate may be. So is a table of another length."""
    for wrong in (-0.1, math.nan, math.inf, 2e6):
        assert "at step 1 it gives" in str(table_refusal(table([1.0, wrong]), 2))
    assert table_refusal(table([0.0, 1e6]), 2) is None
    assert "the schedule has 3" in str(table_refusal(table([1.0, 1.0]), 3))
    assert "does not know one" in str(table_refusal(table([1.0]), None))


def test_a_table_of_rates_is_used_as_it_is():
    """Its values need no base_lr to be what they were, to the bit; one of factors has no other bytes than before."""
    rates = [0.1 / 3, 0.07, 0.1 * 0.9**5]
    absolute = Schedule(policy=LRPolicy.FUNCTION, base_lr=0.07, total_steps=3, function=table(rates, absolute=True))
    assert [rate(absolute, step) for step in (1, 2, 3, 9)] == [*rates, rates[-1]]
    assert b"absolute" not in msgspec.json.encode(table(rates))
