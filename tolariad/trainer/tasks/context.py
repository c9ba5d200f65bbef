"""The context of a hook: the step or the epoch that has just ended.

Promises: a hook without the parameter `context` costs nothing for it. A number on a device is waited for only if it is
asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from torch import Tensor

    from tolariad.trainer.health.stages import Stages
    from tolariad.trainer.setup import Setup
    from tolariad.trainer.step.metrics import StepMetrics


@dataclass(frozen=True, kw_only=True)
class HookContext:
    """The place, the rates and the numbers.

    * `step`: the number of applied updates.
    * `epoch`: the epoch of that update.
    * `batch`: the number of batches of `epoch` that are done.
    * `rates`: the rates of the step by group; in `on_epoch_end`, the rates of the next step.

    On a GPU `losses` and `metrics` wait for the device, unless `detect.sync` is set.
    """

    step: int
    epoch: int
    batch: int
    rates: Mapping[str, float]
    _losses: Callable[[], dict[str, float]] = field(repr=False)
    _metrics: Callable[[], dict[str, float]] = field(repr=False)
    _to: StepMetrics = field(repr=False)
    _stages: Stages = field(repr=False)

    @classmethod
    def of_epoch(cls, setup: Setup, step: int, epoch: int, batch: int, metrics: Mapping[str, float]) -> Self:
        """Return the context of an epoch that has ended, with the means of its validation."""
        loss = setup.rates.host_metrics.get("host_loss", math.nan)
        return cls(
            step=step,
            epoch=epoch,
            batch=batch,
            rates=setup.rates.rates(),
            _losses=lambda: {"loss": loss},
            _metrics=lambda: dict(metrics),
            _to=setup.metrics,
            _stages=setup.stages,
        )

    @property
    def rate(self) -> float:
        """The learning rate of the first group, as `lr` in the journal."""
        return next(iter(self.rates.values()))

    @property
    def losses(self) -> dict[str, float]:
        """`loss`, which is recorded; of a step of several updates also the sum of each optimizer's, by its name.

        In `on_epoch_end`: `loss`, the mean over the epoch's steps.
        """
        return self._losses()

    @property
    def loss(self) -> float:
        """The loss that is recorded."""
        return self.losses["loss"]

    @property
    def metrics(self) -> dict[str, float]:
        """The step's metrics so far by name; in `on_epoch_end` the means of the validation."""
        return self._metrics()

    def log(self, name: str, value: float | Tensor) -> None:
        """Record a metric with the step that has ended; in `on_epoch_end` with the next one. Raises SetupRefused."""
        self._to.log({name: value})

    def new_stage(self, why: str) -> None:
        """Announce a change that may make the loss jump, from the next update on (docs/detection.md).

        A re-run that announces it again changes nothing. Raises SetupRefused if `why` says nothing.
        """
        self._stages.announce(why)
