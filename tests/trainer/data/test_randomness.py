"""Seeds, and what is seeded by them."""

from __future__ import annotations

import random

import numpy as np
import torch

from tolariad.trainer.data.randomness import derived_seed, seed_host, seeds_of


def test_seeding_gives_the_states_that_each_library_gives_itself():
    """Also if a normal number was drawn before: the second one of its pair is dropped."""
    random.gauss(0, 1)
    seed_host(2**62 + 5)
    seeded = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    random.seed(2**62 + 5)
    np.random.seed(5)
    torch.manual_seed(2**62 + 5)
    assert seeded == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())


def test_seeds_of_numbers_are_derived_as_single_ones_are():
    """In half of the time."""
    seed = seeds_of(3, "item", 7)
    assert [seed(number) for number in (0, 1, 99)] == [derived_seed(3, "item", 7, number) for number in (0, 1, 99)]
