"""The learning rates of all groups, written before every update from the schedule alone.

Promises: whoever changed a rate in between, the update uses the scheduled one. It must not know: gradients, steps done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tolariad.core.learning_rate import Decay, Schedule, Warmup, rate, rates_digest, shortened_warmup
from tolariad.trainer.errors import SetupRefused

if TYPE_CHECKING:
    from tolariad.core.settings import OptimizerGroup, Settings
    from tolariad.trainer.optimizers import Groups

_DECAYS: Final = {
    "cosine": Decay.COSINE,
    "host_cosine": Decay.COSINE,
    "linear": Decay.LINEAR,
    "constant": Decay.CONSTANT,
}


class Applied(NamedTuple):
    """The first group's rate and the digest over all of them, as a step reports them."""

    lr: float
    digest: int


class Rates:
    """Schedules of an optimizer's groups, in the groups' order."""

    def __init__(self, groups: Groups, settings: Settings, steps_per_epoch: int) -> None:
        """Raises SetupRefused where a policy is not there yet."""
        self._optimizer = groups.optimizer
        self.schedules = tuple(
            _schedule(settings, origin, base, steps_per_epoch)
            for origin, base in zip(groups.origins, _base_rates(groups, settings), strict=True)
        )

    def write(self, step: int) -> Applied:
        """Set every group's rate to that of update `step`."""
        rates = [rate(schedule, step) for schedule in self.schedules]
        # The list anew each time: load_state_dict puts other groups in the optimizer than it had.
        for group, value in zip(self._optimizer.param_groups, rates, strict=True):
            group["lr"] = value
        return Applied(rates[0], rates_digest(rates))


def _base_rates(groups: Groups, settings: Settings) -> list[float]:
    """A configured group's own rate; else the general one, keeping the ratio a task's optimizer gave its groups."""
    general = settings.learning_rate.base_lr
    given = [float(group["lr"]) for group in groups.optimizer.param_groups]
    bases = []
    for origin, lr in zip(groups.origins, given, strict=True):
        if origin is not None and origin.base_lr is not None:
            bases.append(origin.base_lr)
        else:
            bases.append(general * (lr / given[0]) if given[0] else general)
    return bases


def _schedule(settings: Settings, origin: OptimizerGroup | None, base_lr: float, steps_per_epoch: int) -> Schedule:
    general = settings.learning_rate
    policy = (origin.policy if origin else None) or general.policy
    if policy not in _DECAYS:
        raise SetupRefused(f"learning_rate.policy: {policy} is not there yet; there are {', '.join(_DECAYS)}")
    warmup_epochs = general.warmup_epochs if origin is None or origin.warmup_epochs is None else origin.warmup_epochs
    min_lr = general.min_lr if origin is None or origin.min_lr is None else origin.min_lr
    total_steps = settings.epochs * steps_per_epoch
    return Schedule(
        decay=_DECAYS[policy],
        base_lr=base_lr,
        min_lr=min_lr,
        total_steps=total_steps,
        warmup_steps=shortened_warmup(warmup_epochs * steps_per_epoch, total_steps),
        warmup_factor=general.warmup_factor,
        warmup=Warmup(general.warmup_type),
    )
