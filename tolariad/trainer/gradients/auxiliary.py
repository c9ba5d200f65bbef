"""The auxiliary losses of a run: those that a task's `seed_losses(model, batch)` returns.

Promises: without a seed the method is not called. A seed's stage and alpha are those of its slot, whatever the task
says. What is left out and counted depends on this step alone, so a re-run comes to the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.gradients.aggregator import MultiSeedGradientAggregator
from tolariad.trainer.gradients.sources import SeedGradientInfo, weigh
from tolariad.trainer.step.validate import samples_of

if TYPE_CHECKING:
    from tolariad.core.settings.model import Settings
    from tolariad.trainer.setup import Setup


class AuxiliaryLosses:
    """Belongs to one run. `took_part`: a seed's loss is among the losses of the current step."""

    def __init__(self, losses_of: Callable[..., Any], settings: Settings, rng_seed: int) -> None:
        """`losses_of`: the task's method. Raises SetupRefused if the configured method cannot be used here."""
        conflict = settings.seeds.conflict
        try:
            self._aggregator = MultiSeedGradientAggregator(
                conflict.threshold,
                0.0,
                conflict_resolution_method=conflict.method,
                every=conflict.every,
                rng_seed=rng_seed,
            )
        except ValueError as error:
            raise SetupRefused(f"seeds.conflict: {error}") from error
        self._losses_of = losses_of
        self.took_part = False
        self._dropped: set[str] = set()

    def add_gradients(self, setup: Setup, loss: torch.Tensor, batch: Any, parts: int, step: int) -> torch.Tensor:
        """Add the gradients of one micro-batch of `parts`: of the host's loss, and of the seeds' losses.

        Returns the host's loss, detached from the graph. Raises SetupRefused for losses that cannot be used.
        """
        with setup.forward():
            returned = self._losses_of(setup.model, batch)
        infos = [self._of_slot(setup, info) for info in _checked(returned)]
        try:
            weighed = weigh(loss, infos, samples_of(batch), (0, 0), {})
        except ValueError as error:
            raise SetupRefused(f"seed_losses(model, batch): {error}") from error
        scale = None if parts == 1 and setup.scaling is None else partial(_scaled, setup, parts)
        found = self._aggregator.add_gradients(loss, weighed, step, scale=scale)
        self.took_part = self.took_part or bool(found.active)
        self._dropped.update(found.dropped)
        if infos:
            numbers = found.telemetry()
            if found.conflicts is None:
                # Not a check: nothing is known, which is not the same as no conflict.
                del numbers["conflicts_detected"], numbers["shared_parameters"]
            setup.metrics.log(numbers, parts)
        return loss.detach()

    def end_step(self) -> tuple[bool, set[str]]:
        """Return whether a seed's loss took part in this step, and whose was dropped; begin with the next step."""
        ended = self.took_part, self._dropped
        self.took_part, self._dropped = False, set()
        return ended

    def _of_slot(self, setup: Setup, info: SeedGradientInfo) -> SeedGradientInfo:
        """Return the loss with the stage and alpha of its slot."""
        plot = setup.garden.plots.get(info.seed_id)
        if plot is None:
            slots = ", ".join(setup.garden.plots)
            raise SetupRefused(f"seed_losses(model, batch) names the seed {info.seed_id!r}; the slots are {slots}")
        return replace(info, stage=plot.stage, alpha=plot.alpha)


def auxiliary_losses(task: Any, settings: Settings, rng_seed: int) -> AuxiliaryLosses | None:
    """Return those of a task, or None if it has no `seed_losses`. Raises SetupRefused."""
    found = getattr(task, "seed_losses", None)
    return AuxiliaryLosses(found, settings, rng_seed) if callable(found) else None


def _scaled(setup: Setup, parts: int, first: torch.Tensor) -> torch.Tensor:
    """Return the first gradient of a backward pass for one of so many micro-batches, in an fp16 run scaled."""
    shared = first / parts if parts > 1 else first
    return shared if setup.scaling is None else setup.scaling.scaled(shared)


def _checked(returned: Any) -> Sequence[SeedGradientInfo]:
    infos = () if returned is None else returned
    if isinstance(infos, (list, tuple)) and all(isinstance(info, SeedGradientInfo) for info in infos):
        return infos
    raise SetupRefused(
        "seed_losses(model, batch) must return a list of tolariad.trainer.gradients.SeedGradientInfo, or an empty one, "
        f"not {type(returned).__name__}"
    )
