"""The gradients of a run's seeds after the backward pass: measured, clipped, and dropped if they are not finite.

Promises: a seed whose gradients are dropped makes no update in this step; the host and every other seed do. So it is
with a frozen seed in every step: neither its norm nor its drops are counted. The norms
of all seeds come from the device in one transfer, and the host's update does not wait for it. The host's gradients are
touched only if an auxiliary loss is part of them, and the task does not clip them itself.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tolariad.core import messages as m
from tolariad.trainer.gradients.clipping import clip, gradients_of, norms_of
from tolariad.trainer.optim.owners import parameters_of
from tolariad.trainer.step.measured import Transfer

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from tolariad.trainer.gradients.auxiliary import AuxiliaryLosses
    from tolariad.trainer.optim.owners import Owner
    from tolariad.trainer.seeds.garden import Garden
    from tolariad.trainer.seeds.plots import Plot
    from tolariad.trainer.step.precision import Scaling


class SeedGradients:
    """Those of the current step. `auxiliary`: the losses that the task gives for seeds, or None if it gives none.

    Call `tend` after the backward pass, and `settle` between the update of the host and those of the seeds; both only
    if `garden.active`.
    """

    def __init__(
        self,
        garden: Garden,
        host: Sequence[Owner],
        scaling: Scaling | None,
        auxiliary: AuxiliaryLosses | None,
        *,
        limit: float,
        clips_host: bool,
    ) -> None:
        """`limit`: the largest norm of each owner's gradients; 0: they are not clipped.

        `clips_host`: whether the host's gradients are clipped too, in steps with auxiliary losses.
        """
        self._garden, self._host, self._scaling, self.auxiliary = garden, host, scaling, auxiliary
        self._limit, self._clips_host = limit, clips_host
        self._in_flight: Transfer | None = None
        self._tended: list[Plot] = []
        self._lost: set[str] = set()

    def tend(self, norm: torch.Tensor | float = m.NOT_MEASURED) -> None:
        """Unscale, measure and clip the gradients of every seed on its own, and those of a host with seeds' losses.

        `norm` is the norm of the host's gradients, if it was measured.
        """
        # A rollback may have committed after the last call: nobody settled that step.
        self._in_flight = None
        took_part, self._lost = (False, set()) if self.auxiliary is None else self.auxiliary.end_step()
        # In half precision the norm is rounded.
        is_small = isinstance(norm, float) and 0.0 <= norm < 0.99 * self._limit
        if took_part and self._limit and self._clips_host and not is_small:
            of_host = [gradients_of(parameters_of(self._host))]
            clip(of_host, norms_of(of_host), self._limit)
        for plot in self._garden.growing:
            if plot.is_frozen:
                drop(plot)
        found = [(plot, gradients) for plot in self._garden.growing if (gradients := gradients_of(plot.parameters))]
        self._tended = [plot for plot, _ in found]
        if not found:
            return
        of_seeds = [gradients for _, gradients in found]
        if self._scaling is not None:
            self._scaling.unscale_apart([gradient for gradients in of_seeds for gradient in gradients])
        norms = norms_of(of_seeds)
        clip(of_seeds, norms, self._limit)
        # Begin the transfer now: it then waits for no later work of the device.
        self._in_flight = Transfer(norms)

    def settle(self) -> None:
        """Drop the gradients of every seed that has one which is not finite, and note norms and drops in the plots."""
        norms = self._in_flight.read() if self._in_flight is not None else []
        self._in_flight = None
        for plot, norm in zip(self._tended, norms, strict=True):
            if math.isfinite(norm):
                plot.measured(norm)
                continue
            drop(plot)
            self._lost.add(plot.name)
        for plot in self._garden.growing:
            if plot.name in self._lost and not plot.is_frozen:
                plot.measured(math.nan)
        self._tended, self._lost = [], set()


def drop(plot: Plot) -> None:
    """Drop a seed's gradients. An optimizer passes over parameters without one, and their state stays what it was."""
    for parameter in plot.parameters:
        parameter.grad = None
