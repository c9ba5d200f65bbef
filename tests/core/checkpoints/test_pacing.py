"""The speed of a checkpoint beside training: up to what the disk gives, and down if something suffers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tolariad.core.calc.checkpoints.pacing import (
    APPEND_S,
    FIRST,
    LEAST,
    LEAST_PIECE,
    MOST_PIECE,
    STEP_MOST,
    Beside,
    Pacing,
    after,
)

MB = 1e6


def speeds(disk, windows, suffers=lambda speed: False):
    """Return the limit after each window, on a disk of this speed. `suffers`: whether training does at a speed."""
    pacing, found = Pacing(), []
    for _ in range(windows):
        reached = min(disk, pacing.bytes_s)
        pacing = after(pacing, Beside(reached, step=2.0 if suffers(reached) else 1.0))
        found.append(pacing.bytes_s)
    return found


def test_without_anything_that_suffers_it_is_as_fast_as_the_disk_within_a_few_windows():
    """And the limit runs ahead of the disk by one rise only, so that a fall begins at what the disk gives."""
    assert speeds(2000 * MB, 5) == [400 * MB, 800 * MB, 1600 * MB, 3200 * MB, 4000 * MB]
    assert speeds(2000 * MB, 50)[-1] == 4000 * MB
    assert speeds(80 * MB, 3) == [FIRST] * 3


def test_a_speed_at_which_training_suffers_is_halved_and_come_back_to_in_small_steps():
    """It stays about the greatest speed that training bears."""
    found = speeds(2000 * MB, 60, lambda speed: speed > 500 * MB)

    assert found[1] == 800 * MB
    assert found[2] == 400 * MB
    assert found[3] == pytest.approx(440 * MB)
    assert 250 * MB <= min(found[10:])
    assert max(found[10:]) <= 1.1 * 500 * MB


def test_a_limit_that_is_not_reached_stays():
    """Late wake-ups of the writer are no reason to go slower, also after something has suffered once."""
    pacing = after(Pacing(), Beside(100 * MB, step=2.0))
    limits = []
    for _ in range(20):
        pacing = after(pacing, Beside(0.85 * pacing.bytes_s, step=1.0))
        limits.append(pacing.bytes_s)

    assert limits == [50 * MB] * 20
    assert after(pacing, Beside(pacing.bytes_s, step=1.0)).bytes_s == pytest.approx(55 * MB)


def test_pieces_grow_where_the_limit_is_not_reached_and_shrink_when_the_journal_suffers():
    """A step that suffers does not shrink them: it pays for a piece, not for its size."""
    sizes, pacing = [], Pacing()
    for seen in (
        Beside(FIRST),
        Beside(0.5 * FIRST),
        Beside(0.5 * FIRST),
        Beside(0.5 * FIRST),
        Beside(0.5 * FIRST, step=2.0),
        Beside(0.5 * FIRST, append_s=1.0),
    ):
        pacing = after(pacing, seen)
        sizes.append(pacing.piece_bytes)

    assert sizes[0] == LEAST_PIECE
    # The limit had risen to twice the first one.
    assert sizes[1:] == [2 * LEAST_PIECE, MOST_PIECE, MOST_PIECE, MOST_PIECE, LEAST_PIECE]


def test_if_everything_suffers_the_checkpoint_goes_on():
    """A machine may be slow for another reason."""
    assert speeds(2000 * MB, 20, lambda speed: True)[-1] == LEAST


@pytest.mark.parametrize(
    ("seen", "suffers"),
    [
        ({}, False),
        ({"step": STEP_MOST}, False),
        ({"step": STEP_MOST * 1.01}, True),
        ({"append_s": APPEND_S}, False),
        ({"append_s": 2 * APPEND_S}, True),
        # A disk that turns takes 20 ms for every write.
        ({"append_s": 0.03, "usual_append_s": 0.02}, False),
        ({"append_s": 0.09, "usual_append_s": 0.02}, True),
        ({"append_s": 0.009, "usual_append_s": 0.0001}, False),
    ],
)
def test_steps_are_compared_with_usual_ones_and_the_journal_with_its_budget(seen, suffers):
    """Or with usual writes, where those are long."""
    assert Beside(100 * MB, **seen).suffers == suffers


@given(
    st.lists(st.tuples(st.floats(0, 1e11), st.none() | st.floats(0, 1e3), st.none() | st.floats(0, 1e3)), max_size=30)
)
def test_the_speed_is_a_positive_number_whatever_is_measured(windows):
    """At least the least one."""
    pacing, most = Pacing(), 0.0
    for reached, step, append in windows:
        pacing = after(pacing, Beside(reached, step, append))
        most = max(most, reached)
        assert LEAST <= pacing.bytes_s <= max(FIRST, 2 * most)
        assert LEAST_PIECE <= pacing.piece_bytes <= MOST_PIECE
