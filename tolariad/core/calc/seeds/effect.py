"""The effect of a seed on the validation, with the noise of its samples counted.

The same parts of the validation set are evaluated with the seed and without it. On 24 samples about half of the seeds
that do nothing look better by the mean alone.

Promises: pure functions of numbers.
"""

import math
from collections.abc import Sequence

from msgspec import Struct

from tolariad.core.calc.noise import error_of


class SeedEffect(Struct, frozen=True, kw_only=True):
    """How much the seed lowers the loss: the mean over `parts` of the validation set, and the mean's standard error."""

    gain: float
    error: float
    parts: int


def effect_of(with_seed: Sequence[float], without: Sequence[float]) -> SeedEffect | None:
    """Return the effect from the losses of the same parts; None if there are less than two, or one is not finite.

    Raises ValueError if the two are not equally long.
    """
    gains = [before - after for after, before in zip(with_seed, without, strict=True)]
    if len(gains) < 2 or not all(map(math.isfinite, gains)):
        return None
    return SeedEffect(gain=math.fsum(gains) / len(gains), error=error_of(gains), parts=len(gains))


def judge_effect(effect: SeedEffect | None, errors: float) -> str:
    """Return "" if the seed lowers the loss by more than so many standard errors, else the reason.

    An effect that could not be measured is not judged: a loop of the user's own has no validation that can be asked.
    """
    if effect is None or effect.gain > errors * effect.error:
        return ""
    return (
        f"the loss of the validation is lower by {effect.gain:.4g} with the seed than without it; by chance it may be "
        f"{errors * effect.error:.4g} (of {effect.parts} parts of the set)"
    )
