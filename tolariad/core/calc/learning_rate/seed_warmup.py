"""The rate of a seed: a warm-up of its own from its germination, to a tenth of the host's base rate (sources 000, 001).

Promises: a closed form, as every schedule. Its length is decided once, when the seed is ordered, and recorded.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from tolariad.core.calc.learning_rate.schedule import LRPolicy, Schedule, Warmup, curve_length, shortened_warmup

# Source 000's rate for new parameters: a tenth of the base, from a hundredth of that.
SHARE: Final = 0.1
FACTOR: Final = 0.01


def seed_schedule(host: Schedule, start: int, warmup_steps: int, base_lr: float | None = None) -> Schedule:
    """Return the schedule of a seed that germinates after step `start`.

    `host` is the schedule of the host's first group. It gives the base rate, unless `base_lr` is set, the limits, and
    the parameters of the curve that an order may ask for. The host's own decay does not apply.
    """
    return replace(
        host,
        policy=LRPolicy.SEED_WARMUP,
        base_lr=SHARE * host.base_lr if base_lr is None else base_lr,
        start=start,
        total_steps=curve_length(host.total_steps, start),
        warmup_steps=warmup_steps,
        warmup_factor=FACTOR,
        warmup=Warmup.LINEAR,
        function=None,
    )


def seed_warmup_steps(epochs: int, step: int, *, steps_per_epoch: int, epochs_ended: int, total: int | None) -> int:
    """Return the updates in the warm-up of a seed that germinates after step `step`.

    * `epochs`: the configured length.
    * `steps_per_epoch`: 0 if the data has no length; the mean of the epochs so far then counts.
    * `total`: the planned updates of the run; None: not known.

    A warm-up that is as long as the rest of the run is shortened to half of that.
    """
    length = steps_per_epoch or -(-step // max(1, epochs_ended))
    left = curve_length(total, step)
    return epochs * length if left is None else shortened_warmup(epochs * length, left)
