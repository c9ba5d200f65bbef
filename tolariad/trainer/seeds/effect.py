"""Measure what a seed does to the validation: the same parts of its data, with the seed and without it.

Promises: nothing of the run changes, neither in the model nor in a generator of random numbers. Both passes over a part
draw the same numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from tolariad.core.calc.seeds.effect import SeedEffect, effect_of
from tolariad.trainer.data.randomness import derived_seed, preserved_rng, seed_everything
from tolariad.trainer.data.samples import known_samples
from tolariad.trainer.step.validate import unchanged, validate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tolariad.trainer.data.feed import Feed
    from tolariad.trainer.seeds.slot import SeedSlot
    from tolariad.trainer.setup import Setup

# So many parts show the noise of a set. Fewer batches than that are divided, if they are tensors.
_PARTS: Final = 16


def measure_effect(setup: Setup, slot: SeedSlot, beat: Callable[[], None]) -> SeedEffect | None:
    """Return the effect of the slot's seed; None if there is no validation with a loss, or only one part of it."""
    if setup.validation is None:
        return None
    with_seed, without = [], []
    with unchanged(setup), preserved_rng():
        seed_everything(derived_seed(setup.rng_seed, "validation"))
        with setup.validation.untouched():
            for part in _parts(setup.validation):
                found = validate(setup, beat, only=(part,)).means.get("loss")
                with slot.bypassed():
                    other = validate(setup, beat, only=(part,)).means.get("loss")
                if found is None or other is None:
                    return None
                with_seed.append(found)
                without.append(other)
    return effect_of(with_seed, without)


def _parts(data: Feed) -> Iterator[Any]:
    """Yield the batches of the validation data, or pieces of them if there are few."""
    pieces = 1 if data.batches is None else -(-_PARTS // max(1, data.batches))
    for batch in data.epoch(0, 0):
        yield from _pieces(batch, pieces)


def _pieces(batch: Any, pieces: int) -> Iterator[Any]:
    """Divide a batch that consists of tensors of one length; yield any other one whole."""
    samples = known_samples(batch)
    if not samples or pieces < 2:
        yield batch
        return
    size = -(-samples // pieces)
    places = [slice(first, first + size) for first in range(0, samples, size)]
    match batch:
        case torch.Tensor():
            yield from (batch[place] for place in places)
        case tuple() | list() if type(batch) in (tuple, list) and all(_has(one, samples) for one in batch):
            yield from (type(batch)(one[place] for one in batch) for place in places)
        case _:
            yield batch


def _has(given: object, samples: int) -> bool:
    return isinstance(given, torch.Tensor) and given.dim() > 0 and len(given) == samples
