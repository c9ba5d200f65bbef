"""Evaluate the validation data: return means over all samples, and change nothing else.

Promises: process-wide generators, training modes and gradients are the same afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tolariad.failpoints import reached
from tolariad.trainer.data.feed import to_device
from tolariad.trainer.data.randomness import derived_seed, preserved_rng, seed_everything
from tolariad.trainer.errors import SetupRefused

if TYPE_CHECKING:
    from tolariad.trainer.setup import Setup


class Metrics(NamedTuple):
    """Means by name, and the number of samples."""

    means: dict[str, float]
    samples: int


def validate(setup: Setup, beat: Callable[[], None]) -> Metrics:
    """Evaluate a run on its validation data, with the averaged weights if it keeps them. No metrics without data.

    Sums are added up in double precision, in the order of the batches. `beat` is called at first and before each batch.
    """
    if setup.validation is None:
        return Metrics({}, 0)
    beat()
    sums: dict[str, list[Any]] = {}
    counts: dict[str, int] = {}
    modes = [(module, module.training) for module in setup.model.modules()]
    with setup.average.applied() if setup.average is not None else nullcontext():
        setup.model.eval()
        try:
            with preserved_rng(), torch.no_grad():
                # A validation that draws must give the same result in every epoch and after every restart.
                seed_everything(derived_seed(setup.rng_seed, "validation"))
                for batch in setup.validation.epoch(0, 0):
                    beat()
                    reached("validation")
                    with setup.forward():
                        found = setup.task.evaluate(setup.model, to_device(batch, setup.device))
                    for name, (total, count) in _named(found):
                        sums.setdefault(name, []).append(total)
                        counts[name] = counts.get(name, 0) + int(count)
        finally:
            # Restore each module's own mode: a task may keep some of them in eval mode all the time.
            for module, training in modes:
                module.training = training
    means = {name: _total(values) / counts[name] if counts[name] else math.nan for name, values in sums.items()}
    return Metrics(means, max(counts.values(), default=0))


def _total(values: list[Any]) -> float:
    """Return the sum over batches, computed on their device, in one transfer."""
    return float(torch.stack([torch.as_tensor(value, dtype=torch.float64) for value in values]).sum())


def _named(found: dict[Any, tuple[Any, int]]) -> Iterable[tuple[str, tuple[Any, int]]]:
    """Return the results of a task's evaluate. Raises SetupRefused if a name is not text: it could not be recorded."""
    for name in found:
        if not isinstance(name, str):
            raise SetupRefused(
                f"evaluate(model, batch) must return a dict by names; {name!r} is a {type(name).__name__}"
            )
    return found.items()
