"""The speed of a checkpoint beside training: up to what the disk gives, and down if something suffers from it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise

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
    begun,
)

MB = 1e6
WINDOW_S = 0.1


def speeds(disk, windows, step_at=lambda speed: 1.0, pacing=None):
    """Return the limit after each window, on a disk of this speed. `step_at`: the share of a usual step at a speed."""
    pacing, found = pacing or Pacing(), []
    for _ in range(windows):
        reached = min(disk, pacing.bytes_s)
        pacing = after(pacing, Beside(reached, step=step_at(reached)))
        found.append(pacing.bytes_s)
    return found


def test_without_anything_that_suffers_it_is_as_fast_as_the_disk_within_a_few_windows():
    """And the limit runs ahead of the disk by one rise only."""
    assert speeds(2000 * MB, 5) == [400 * MB, 800 * MB, 1600 * MB, 3200 * MB, 4000 * MB]
    assert speeds(2000 * MB, 50)[-1] == 4000 * MB
    assert speeds(80 * MB, 3) == [FIRST] * 3


def test_a_speed_that_costs_training_more_than_half_of_it_is_halved_and_come_back_to_in_small_steps():
    """It stays about the greatest speed that training bears. Here steps suffer beyond 500 MB/s, and only there."""
    found = speeds(2000 * MB, 60, lambda speed: 2.0 if speed > 500 * MB else 1.0)

    assert found[1] == 800 * MB
    assert found[2] == 400 * MB
    assert found[3] == pytest.approx(480 * MB)
    assert 250 * MB <= min(found[10:])
    assert max(found[10:]) <= 1.2 * 500 * MB


@pytest.mark.parametrize("share", [1.3, 1.9, 5.0])
def test_a_fall_that_does_not_help_is_taken_back_and_not_tried_again(share):
    """A step that takes longer at any speed: by the price of a piece, or since others load the machine."""
    found = speeds(2000 * MB, 12, lambda speed: share)

    assert found[:2] == [FIRST / 2, FIRST]
    assert all(later > before for before, later in pairwise(found[1:9]))
    assert found[-1] > 800 * MB


def test_where_slowing_does_not_help_pieces_grow():
    """Each piece costs the same then, whatever its size."""
    slow = after(Pacing(), Beside(FIRST, step=1.5))
    back = after(slow, Beside(slow.bytes_s, step=1.5))

    assert (slow.piece_bytes, back.piece_bytes) == (LEAST_PIECE, 2 * LEAST_PIECE)
    assert back.bytes_s == FIRST


def test_a_step_that_takes_far_too_long_keeps_the_lower_speed_though_a_byte_costs_no_less():
    """It takes 4 usual ones, 2.5 at half of the speed: training loses more in all, but no single step as much."""
    slow = after(Pacing(), Beside(FIRST, step=4.0))
    after_it = after(slow, Beside(slow.bytes_s, step=2.5))

    assert after_it.bytes_s <= slow.bytes_s


def test_the_next_checkpoint_finds_out_anew_whether_slowing_helps():
    """It begins with the speed and the pieces of this one."""
    pacing = Pacing()
    for _ in range(6):
        pacing = after(pacing, Beside(pacing.bytes_s, step=1.5))
    again = begun(pacing)

    assert (again.bytes_s, again.piece_bytes, again.careful) == (pacing.bytes_s, pacing.piece_bytes, True)
    assert after(pacing, Beside(pacing.bytes_s, step=1.5)).bytes_s > pacing.bytes_s
    assert after(again, Beside(again.bytes_s, step=1.5)).bytes_s == again.bytes_s / 2


def test_a_trial_during_which_no_step_ends_is_not_taken_back():
    """Training validates meanwhile: the speed rises from where it is."""
    slow = after(Pacing(), Beside(FIRST, step=1.5))

    assert after(slow, Beside(slow.bytes_s)).bytes_s == pytest.approx(1.2 * slow.bytes_s)


def test_a_limit_that_is_not_quite_reached_rises_and_one_that_is_far_off_stays():
    """Late wake-ups of the writer are no reason to stay slow. The disk or a processor is."""
    careful = after(Pacing(), Beside(FIRST, append_s=1.0))

    assert speeds(2000 * MB, 1, pacing=careful) == [pytest.approx(1.2 * careful.bytes_s)]
    assert after(careful, Beside(0.85 * careful.bytes_s)).bytes_s > careful.bytes_s
    assert after(careful, Beside(0.5 * careful.bytes_s)).bytes_s == careful.bytes_s


def test_pieces_grow_where_the_limit_is_not_reached_and_shrink_when_the_journal_suffers():
    """A step that suffers does not shrink them."""
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


def test_if_the_journal_suffers_at_any_speed_the_checkpoint_goes_on():
    """No fall is taken back for it, and 50 MB/s is the least."""
    pacing = Pacing()
    for _ in range(20):
        pacing = after(pacing, Beside(pacing.bytes_s, step=1.0, append_s=0.5))

    assert pacing == Pacing(LEAST, careful=True)


@pytest.mark.parametrize(
    ("seen", "falls"),
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
def test_steps_are_compared_with_usual_ones_and_the_journal_with_its_budget(seen, falls):
    """Or with usual writes, where those are long."""
    assert (after(Pacing(), Beside(FIRST, **seen)).bytes_s < FIRST) == falls


@given(
    st.lists(st.tuples(st.floats(0, 1e11), st.none() | st.floats(0, 1e3), st.none() | st.floats(0, 1e3)), max_size=30)
)
def test_the_speed_is_a_positive_number_whatever_is_measured(windows):
    """At least the least one."""
    pacing, most = Pacing(), 0.0
    for reached, step, append in windows:
        pacing = after(pacing, Beside(reached, step, append))
        most = max(most, reached)
        # A limit rises by twice at most, if four fifths of it were reached.
        assert LEAST <= pacing.bytes_s <= max(FIRST, 2 / 0.8 * most)
        assert LEAST_PIECE <= pacing.piece_bytes <= MOST_PIECE


@dataclass
class Machine:
    """Training beside a disk. A step takes 1 + a * speed + b * speed**2 + c * pieces a second, in GB/s and thousands.

    `append_s_gb`: what a durable write takes longer for each GB/s. `loaded`: all steps take so much longer, by others.
    `noise`: the spread of a window's median step.
    """

    disk: float
    by_speed: float = 0.0
    by_square: float = 0.0
    by_piece: float = 0.0
    append_s_gb: float = 0.0
    loaded: float = 1.0
    noise: float = 0.0

    def seen(self, bytes_s: float, piece: int, draw: random.Random) -> Beside:
        reached = min(self.disk, bytes_s)
        gb = reached / 1e9
        beside = 1.0 + self.by_speed * gb + self.by_square * gb**2 + self.by_piece * reached / piece / 1e3
        step = self.loaded * beside * (1.0 + draw.gauss(0.0, self.noise))
        return Beside(reached, max(0.05, step), 0.001 + self.append_s_gb * gb, 0.001)

    def lost(self, seen: Beside) -> float:
        """The share of the time that training loses by this checkpoint, without what others take."""
        return max(0.0, 1.0 - self.loaded / seen.step)


def adapted(machine, draw, size=1.2e9, pacing=None):
    """Write a checkpoint. Return seconds, seconds that training lost, and the pacing at its end."""
    pacing, seconds, lost, left = begun(pacing or Pacing()), 0.0, 0.0, size
    while left > 0:
        seen = machine.seen(pacing.bytes_s, pacing.piece_bytes, draw)
        took = min(WINDOW_S, left / seen.bytes_s)
        seconds, lost, left = seconds + took, lost + took * machine.lost(seen), left - took * seen.bytes_s
        pacing = after(pacing, seen)
    return seconds, lost, pacing


def fixed(machine, bytes_s, draw, size=1.2e9):
    """Do the same with a limit, in small pieces."""
    seen = [machine.seen(bytes_s, LEAST_PIECE, draw) for _ in range(200)]
    seconds = size / seen[0].bytes_s
    return seconds, seconds * sum(machine.lost(one) for one in seen) / len(seen)


# Of each machine: how long a second checkpoint of 1.2 GB may take at most.
MACHINES = {
    "a GPU, steps only wait": (Machine(2000 * MB, by_speed=0.02), 0.7),
    "a GPU, by noise": (Machine(2000 * MB, by_speed=0.02, noise=0.08), 1.2),
    "all cores compute, a byte costs": (Machine(1000 * MB, by_speed=0.8), 1.8),
    "all cores compute, a piece costs": (Machine(700 * MB, by_piece=3.0), 2.5),
    "a slow disk": (Machine(120 * MB, by_speed=0.3), 10.1),
    "a disk whose journal suffers": (Machine(2000 * MB, append_s_gb=0.03), 6.0),
    "loaded by others": (Machine(1000 * MB, by_speed=0.1, loaded=2.5), 1.8),
    "loaded by others, by noise": (Machine(1000 * MB, by_speed=0.1, loaded=1.3, noise=0.15), 3.5),
}


@pytest.mark.parametrize("name", MACHINES)
def test_it_costs_training_no_more_than_the_better_fixed_limit_and_does_not_crawl(name, seed):
    """Limits of 100 and 400 MB/s, by what they cost in all; the seconds are of a second checkpoint."""
    machine, most_s = MACHINES[name]
    draw = random.Random(seed)
    _, _, pacing = adapted(machine, draw)
    found = [adapted(machine, draw, pacing=pacing) for _ in range(20)]
    seconds, lost = (sum(one[i] for one in found) / len(found) for i in (0, 1))
    better = min(fixed(machine, limit, draw)[1] for limit in (100 * MB, 400 * MB))

    assert seconds <= most_s
    assert lost <= 1.3 * better + 0.05


def test_where_only_a_great_speed_costs_a_step_may_take_a_quarter_more(seed):
    """Training loses more than at 100 MB/s, as decided, but less than at 400. A checkpoint takes 5 s, not 12."""
    machine, draw = Machine(1000 * MB, by_square=2.5), random.Random(seed)
    _, _, pacing = adapted(machine, draw)
    seconds, lost, _ = adapted(machine, draw, pacing=pacing)

    assert seconds < 6.0
    assert fixed(machine, 100 * MB, draw)[1] < lost < 0.85 * fixed(machine, 400 * MB, draw)[1]


def test_a_journal_that_suffers_is_written_within_its_budget_most_of_the_time():
    """10 ms are reached at 300 MB/s here: the speed goes up to it and falls back."""
    machine, draw, pacing, over = MACHINES["a disk whose journal suffers"][0], random.Random(1), Pacing(), 0
    for _ in range(200):
        seen = machine.seen(pacing.bytes_s, pacing.piece_bytes, draw)
        over += seen.journal_suffers
        pacing = after(pacing, seen)

    assert over < 0.25 * 200
