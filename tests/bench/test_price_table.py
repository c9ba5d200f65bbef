"""The arithmetic of the price table, on blocks whose figures are known; the table itself is `make bench`'s."""

from __future__ import annotations

import pytest

from tests.bench.price_table import lines, paired, waits


def block(wall_us, cpu_us=100.0, **more):
    return {"wall_us": wall_us, "cpu_us": cpu_us, "preempted": 0.0, **more}


def a_round(bare_us, over_us, waits_us):
    own = block(bare_us + over_us, waits_us=waits_us, steps=100, daemon_us=200.0, daemon_threads_us=[190.0, 10.0])
    return {"bare": block(bare_us), "tolariad": own}


def test_differences_are_taken_within_a_round():
    """A machine that is slow in one round is slow for both."""
    rounds = [a_round(1000.0, 30.0, []), a_round(5000.0, 40.0, []), a_round(900.0, 20.0, [])]

    assert paired(rounds, "tolariad", "bare", "wall_us") == (25.0, 30.0, 35.0)
    assert paired(rounds, "tolariad", "bare", "cpu_us") == (0.0, 0.0, 0.0)


def test_an_open_gate_is_a_wait_of_nothing():
    """p50 and p99 are over all steps, not over those that waited."""
    share, p50, p99 = waits([a_round(1.0, 1.0, [7.0] * 3), a_round(1.0, 1.0, [9.0])])

    assert share == pytest.approx(0.02)
    assert (p50, p99) == (0.0, 7.0)


def test_every_loop_has_a_row():
    """And the bare one, which is what the others are compared with, no difference."""
    shown = lines([a_round(1000.0, 30.0, []), a_round(1000.0, 50.0, [])])

    assert any(line.startswith("bare ") and "+" not in line for line in shown)
    assert any(line.startswith("tolariad ") and "+40.0" in line for line in shown)
    assert "190 of them the recorder's thread" in shown[-1]


def test_several_bare_loops_are_one_measure_and_show_their_own_noise():
    """Their mean is what the others are compared with; each has its distance from it."""
    rounds = [{**a_round(1000.0, 50.0, []), "bare 2": block(1040.0)} for _ in range(2)]

    assert paired(rounds, "tolariad", "bare", "wall_us").median == 30.0
    assert any(line.startswith("bare 2 ") and "+20.0" in line for line in lines(rounds))
