"""The random numbers of a leaf: they depend on the seed of the run, the step and the leaf, not on ranks before it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tolariad.trainer.data import generators
from tolariad.trainer.data.randomness import derived_seed, seed_host


def seed_leaf(rng_seed: int, step: int, leaf: int, held: Sequence[generators.Generator] = ()) -> None:
    """Seed the generators of Python, NumPy and torch, that of the current device, and those that are `held`.

    `rng_seed`: the run's seed; `step`: number of the update, from 1; `leaf`: number of the leaf, from 0. After the last
    leaf of a step call it with the number of leaves: what is drawn between two steps does not depend on the number of
    ranks either.
    """
    seed = derived_seed(rng_seed, "leaf", step, leaf)
    seed_host(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)
    for number, generator in enumerate(held):
        generators.seed(generator, derived_seed(seed, number))
