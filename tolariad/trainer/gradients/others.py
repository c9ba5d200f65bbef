"""Gradient aggregators of TorchJD, by the name `torchjd:NAME`.

Promises: an aggregator gets a state of the random generators that depends on (rng_seed, step) alone, and the run's
generators are the same afterwards. An aggregator that keeps a state is refused: no checkpoint would hold it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import torch

from tolariad.trainer.data.randomness import derived_seed, preserved_rng, seed_everything

PREFIX: Final = "torchjd:"
# From the gradients, a row each, the one that replaces them; the numbers are (rng_seed, step).
Aggregate: TypeAlias = Callable[[torch.Tensor, int, int], torch.Tensor]


def torchjd_aggregator(name: str) -> Aggregate:
    """Return TorchJD's aggregator of this name, made without arguments.

    Raises ValueError if TorchJD is not installed, has no such aggregator, or if this one needs arguments, packages or
    a state.
    """
    try:
        import torchjd
        from torchjd import aggregation
    except ImportError as error:
        raise ValueError(
            f"{PREFIX}{name} needs the package torchjd, which is not installed: pip install 'tolariad[aggregators]'"
        ) from error
    named = {each: getattr(aggregation, each) for each in aggregation.__all__}
    known = {each: found for each, found in named.items() if _is_aggregator(found, aggregation)}
    if name not in known:
        raise ValueError(f"TorchJD has no aggregator {name!r}; it has {', '.join(sorted(known))}")
    if issubclass(known[name], torchjd.Stateful):
        raise ValueError(  # noqa: TRY004 - a value of the configuration
            f"{PREFIX}{name} remembers earlier steps, and no checkpoint holds that: a run could not "
            "resume exactly. Choose one without a state, such as torchjd:MGDA"
        )
    try:
        aggregator = known[name]()
    except TypeError as error:
        raise ValueError(f"{PREFIX}{name} needs arguments, and cannot be made by its name alone: {error}") from error
    except ImportError as error:
        raise ValueError(f"{PREFIX}{name} cannot be made here: {error}") from error

    def aggregate(rows: torch.Tensor, rng_seed: int, step: int) -> torch.Tensor:
        # Some of them draw from the global generators. A draw there would change the data of the next step.
        with preserved_rng(), torch.no_grad():
            seed_everything(derived_seed(rng_seed, "gradients", step))
            result: torch.Tensor = aggregator(rows)
            return result

    return aggregate


def _is_aggregator(found: Any, aggregation: Any) -> bool:
    bases = (aggregation.Aggregator, aggregation.WeightedAggregator, aggregation.GramianWeightedAggregator)
    return isinstance(found, type) and issubclass(found, aggregation.Aggregator) and found not in bases
