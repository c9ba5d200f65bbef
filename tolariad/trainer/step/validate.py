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
from tolariad.trainer.data.feed import Feed, to_device
from tolariad.trainer.data.randomness import derived_seed, preserved_rng, seed_everything
from tolariad.trainer.errors import SetupRefused

if TYPE_CHECKING:
    from torch import nn

    from tolariad.trainer.setup import Setup
    from tolariad.trainer.step.precision import Forward


class Metrics(NamedTuple):
    """Means by name, and the number of samples."""

    means: dict[str, float]
    samples: int


def validate_run(setup: Setup, beat: Callable[[], None]) -> Metrics:
    """Evaluate a run on its validation data, with the averaged weights if it keeps them. No metrics without data."""
    if setup.validation is None:
        return Metrics({}, 0)

    def each() -> None:
        beat()
        reached("validation")

    beat()
    with setup.average.applied() if setup.average is not None else nullcontext():
        return validate(
            setup.task,
            setup.model,
            setup.validation,
            device=setup.device,
            rng_seed=setup.rng_seed,
            each=each,
            forward=setup.forward,
        )


def validate(
    task: Any,
    model: nn.Module,
    feed: Feed,
    *,
    device: torch.device,
    rng_seed: int,
    each: Callable[[], None],
    forward: Forward = nullcontext,
) -> Metrics:
    """Evaluate every batch in a context of `forward`. Call `each` before each. Add up in double precision, in order."""
    sums: dict[str, list[Any]] = {}
    counts: dict[str, int] = {}
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with preserved_rng(), torch.no_grad():
            # A validation that draws must give the same result in every epoch and after every restart.
            seed_everything(derived_seed(rng_seed, "validation"))
            for batch in feed.epoch(0, 0):
                each()
                with forward():
                    found = task.evaluate(model, to_device(batch, device))
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
