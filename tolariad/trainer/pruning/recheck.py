"""The check of masks against the newer weights: training has passed since the checkpoint that was analysed.

The analysis validated the masks on that checkpoint. At the boundary the run's own model is evaluated on held-out data,
without the masks and with them, and judged by the same limit. Promises: weights, averages, buffers, modes and
generators are as before, also if the task raises. A number that is not finite is never within the limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch

from tolariad.core.calc.pruning.verdict import ACCURACY, accuracy_limit, in_words
from tolariad.trainer.data.randomness import preserved_rng
from tolariad.trainer.pruning.evidence import held_out_slices
from tolariad.trainer.pruning.quality import SLICES, Level, Levels, Quality, metric_of, quality_of
from tolariad.trainer.pruning.units import Coordinates, PruningRefused
from tolariad.trainer.pruning.verify import zero
from tolariad.trainer.step.validate import unchanged, validate

if TYPE_CHECKING:
    from tolariad.trainer.setup import Setup


class Rechecked(NamedTuple):
    """The model at the boundary, without the masks and with them. `metric`: the one by which it was measured."""

    before: Quality
    masked: Quality
    metric: str


def recheck(setup: Setup, coordinates: Coordinates, beat: Callable[[], None]) -> Rechecked | None:
    """Return both qualities. None: there are no held-out data, or no metric of them that can be compared.

    `beat` is called before each batch. Raises PruningRefused if the accuracy falls by more than the validation allows.
    """
    if setup.validation is None:
        return None
    try:
        with unchanged(setup), preserved_rng():
            found = _evaluated(setup, coordinates, beat)
    except Exception as error:
        # The task's own code runs here. Training goes on, so its fault must not end the run.
        raise PruningRefused(f"their check on the newer weights raised {type(error).__name__}: {error}") from error
    if found is None:
        return None
    drop = found.before.accuracy - found.masked.accuracy
    before = found.before
    most = accuracy_limit(setup.settings.prune, before.accuracy, before.spread, before.samples)
    # Negated: a NaN is not within the limit.
    if not drop <= most:  # safety: newer-weights-asked
        was = f" from {found.before.accuracy:.4f}" if found.metric == ACCURACY else ""
        raise PruningRefused(
            f"training has gone on since they were analysed: with them {in_words(drop, found.metric)}{was} now; at "
            f"most {most:.4f} are allowed (prune.validation.accuracy_retention)"
        )
    return found


def _evaluated(setup: Setup, coordinates: Coordinates, beat: Callable[[], None]) -> Rechecked | None:
    slices = held_out_slices(setup, setup.settings.prune.min_samples, SLICES)
    metric = ""

    def levels() -> Levels:
        nonlocal metric
        found = [validate(setup, beat, only=one) for one in slices]
        metric = metric or (metric_of(found[0].means) if found else "")
        return [Level(one.means.get(metric, math.nan), one.weight, one.samples) for one in found]

    before = levels()
    if not metric:
        return None
    with zeroed(setup, coordinates):
        masked = levels()
    return Rechecked(quality_of(metric, before, before), quality_of(metric, masked, before), metric)


@contextmanager
def zeroed(setup: Setup, coordinates: Coordinates) -> Iterator[None]:
    """In the block weights and averages are 0 at these coordinates; after it they have the same bits as before."""
    sets: list[Mapping[str, torch.Tensor]] = [dict(setup.model.named_parameters())]
    if setup.average is not None:
        sets.append(setup.average.tensors)
    held = [(one[path], one[path].detach().clone()) for one in sets for path in coordinates if path in one]
    try:
        for one in sets:
            zero(one, {path: dims for path, dims in coordinates.items() if path in one})
        yield
    finally:
        with torch.no_grad():
            for tensor, values in held:
                tensor.copy_(values)  # safety: checked-weights-put-back
