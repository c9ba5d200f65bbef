"""The auxiliary losses of a run: those that a task's `seed_losses(model, batch)` returns.

Promises: without a seed the method is not called. A seed's stage and alpha are those of its slot, whatever the task
says. What is left out and counted depends on this step alone, so a re-run comes to the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tolariad.core.calc.seeds.stages import Stage
from tolariad.trainer.data.samples import samples_of
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.gradients.aggregator import MultiSeedGradientAggregator
from tolariad.trainer.gradients.sources import SeedGradientInfo, weigh

if TYPE_CHECKING:
    from tolariad.core.calc.settings.seeds import SeedSettings
    from tolariad.trainer.seeds.garden import Garden
    from tolariad.trainer.step.precision import Forward, Scaling


class AuxiliaryLosses:
    """Belongs to one run. `took_part`: a seed's loss is among the losses of the current step."""

    def __init__(
        self,
        losses_of: Callable[..., Any],
        garden: Garden,
        forward: Forward,
        scaling: Scaling | None,
        *,
        seeds: SeedSettings,
        rng_seed: int,
    ) -> None:
        """`losses_of`: the task's method. Raises SetupRefused if the configured method cannot be used here."""
        conflict = seeds.conflict
        try:
            self._aggregator = MultiSeedGradientAggregator(
                conflict.threshold,
                max_gradient_norm=0.0,
                conflict_resolution_method=conflict.method,
                every=conflict.every,
                rng_seed=rng_seed,
            )
        except ValueError as error:
            raise SetupRefused(f"seeds.conflict: {error}") from error
        self._weights: dict[int, float] = {Stage[name]: weight for name, weight in seeds.stage_weights.items()}
        self._losses_of, self._garden, self._forward, self._scaling = losses_of, garden, forward, scaling
        self.took_part = False
        self._dropped: set[str] = set()

    def add_gradients(
        self, model: nn.Module, loss: torch.Tensor, batch: Any, parts: int, step: int
    ) -> dict[str, float]:
        """Add the gradients of one micro-batch: those of the host's loss, and those of the seeds' losses.

        `parts` is the number of micro-batches in a step. Returns the telemetry; empty if the task gave no losses.
        Raises SetupRefused for losses that cannot be used.
        """
        with self._forward():
            returned = self._losses_of(model, batch)
        infos = [self._of_slot(info) for info in _checked(returned)]
        try:
            weighed = weigh(loss, infos, samples_of(batch), (0, 0), self._weights)
        except ValueError as error:
            raise SetupRefused(f"seed_losses(model, batch): {error}") from error

        def scaled(first: torch.Tensor) -> torch.Tensor:
            shared = first / parts if parts > 1 else first
            return shared if self._scaling is None else self._scaling.scaled(shared)

        found = self._aggregator.add_gradients(loss, weighed, step, scale=scaled)
        self.took_part = self.took_part or bool(found.active)
        self._dropped.update(found.dropped)
        if not infos:
            return {}
        numbers = found.telemetry()
        if found.conflicts is None:
            # Not a check: it is not known whether there is a conflict.
            del numbers["conflicts_detected"], numbers["shared_parameters"]
        return numbers

    def end_step(self) -> tuple[bool, set[str]]:
        """Return whether a seed's loss took part in this step, and whose was dropped; begin with the next step."""
        ended = self.took_part, self._dropped
        self.took_part, self._dropped = False, set()
        return ended

    def _of_slot(self, info: SeedGradientInfo) -> SeedGradientInfo:
        """Return the loss with the stage and alpha of its slot."""
        plot = self._garden.plots.get(info.seed_id)
        if plot is None:
            slots = ", ".join(self._garden.plots)
            raise SetupRefused(f"seed_losses(model, batch) names the seed {info.seed_id!r}; the slots are {slots}")
        return replace(info, stage=plot.stage, alpha=plot.alpha)


def _checked(returned: Any) -> Sequence[SeedGradientInfo]:
    infos = () if returned is None else returned
    if isinstance(infos, (list, tuple)) and all(isinstance(info, SeedGradientInfo) for info in infos):
        return infos
    raise SetupRefused(
        "seed_losses(model, batch) must return a list of tolariad.trainer.gradients.SeedGradientInfo, or an empty one, "
        f"not {type(returned).__name__}"
    )
