"""The validation of masks on a copy: structure, gradient flow, memory, and accuracy on held-out data.

Promises: the model has the same weights afterwards. The numbers before and with the masks are from the same batches
under the same seeds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from tolariad.core.calc.pruning.analysis import AnalysisRequest
from tolariad.core.calc.pruning.units import Units, joined
from tolariad.core.calc.pruning.verdict import ACCURACY, MaskMeasure
from tolariad.trainer.pruning.evidence import SeededBatch, held_out_slices, loss_of
from tolariad.trainer.pruning.importance import on_a_copy
from tolariad.trainer.pruning.masks import HeldMasks, MaskSet, masks_of
from tolariad.trainer.pruning.quality import SLICES, Level, mean_of, metric_of, quality_of
from tolariad.trainer.pruning.recheck import zeroed
from tolariad.trainer.pruning.units import Coordinates, PruningRefused, UnitGroup
from tolariad.trainer.pruning.verify import zero
from tolariad.trainer.pruning.watch import may_judge_memory, memory_in_use
from tolariad.trainer.step.validate import validate

if TYPE_CHECKING:
    from tolariad.trainer.setup import Setup

# Of a task without held-out data, or without a metric of them.
_TRAINING_LOSS: Final = "training loss"
# Gradients of this many batches show whether they flow.
_FLOW_BATCHES: Final = 4


class Flow(NamedTuple):
    """The norm of the gradients, and the parameters that got none."""

    norm: float
    silent: frozenset[str]


class MaskValidation:
    """Measures the model as it is once, then any number of mask sets."""

    def __init__(
        self,
        setup: Setup,
        groups: Sequence[UnitGroup],
        request: AnalysisRequest,
        batches: Sequence[SeededBatch],
        samples: int,
    ) -> None:
        """`batches`: batches of the training data, for the gradients.

        `samples`: the least number of held-out samples to use, if there are so many.
        """
        self._setup, self._groups, self._request = setup, groups, request
        self._batches = batches
        self._slices = held_out_slices(setup, samples, SLICES)
        self._ends = time.monotonic() + setup.settings.prune.validation.timeout_s
        self._metric = ""
        self._levels = self._measured_levels()
        self._flow = self._gradients(masks_of(setup.model, groups, self._together({})).coordinates)
        self._judges_memory = may_judge_memory(setup.device, setup.settings.prune.safety)

    @property
    def metric(self) -> str:
        """The metric by which masks are judged: the accuracy, else a loss."""
        return self._metric

    def measure(self, units: Units) -> MaskMeasure:
        """Return what the masks of these units, and of those before, do to the model."""
        before = quality_of(self._metric, self._levels, self._levels)
        together = self._together(units)
        structure, masks = "", MaskSet()
        try:
            masks = masks_of(self._setup.model, self._groups, together)
            HeldMasks(self._setup.model, masks)
        except PruningRefused as refused:
            structure = str(refused)
        with zeroed(self._setup, masks.coordinates):
            after = quality_of(self._metric, self._measured_levels(), self._levels)
        flow = self._gradients(masks.coordinates)
        return MaskMeasure(
            accuracy_before=before.accuracy,
            accuracy=after.accuracy,
            gradient_norm_before=self._flow.norm,
            gradient_norm=flow.norm,
            layer_share=self._layer_share(together),
            spread=before.spread,
            samples=before.samples,
            structure=structure,
            without_gradient=tuple(sorted(flow.silent - self._flow.silent)),
            memory=memory_in_use(self._setup.device) if self._judges_memory else None,
            loss_before=None if self._metric == ACCURACY else mean_of(self._levels),
        )

    def _together(self, units: Units) -> Units:
        """Return these units and those that are masked, of groups that there are: others are 0 in the checkpoint."""
        return joined([{one.name: self._request.masked.get(one.name, ()) for one in self._groups}, units])

    def _beat(self) -> None:
        if time.monotonic() > self._ends:
            limit = self._setup.settings.prune.validation.timeout_s
            raise PruningRefused(f"the validation of masks took more than {limit:g} s (prune.validation.timeout_s)")

    def _layer_share(self, units: Units) -> float:
        taken = self._request.removed
        return max(
            (
                (len(units.get(one.name, ())) + taken.get(one.name, 0)) / (one.width + taken.get(one.name, 0))
                for one in self._groups
            ),
            default=0.0,
        )

    # -- accuracy ------------------------------------------------------------------------------------------------------

    def _measured_levels(self) -> list[Level]:
        """Return the metric of each slice with its number of samples: the accuracy, else the loss."""
        found = [validate(self._setup, self._beat, only=one) for one in self._slices]
        if not self._metric:
            self._metric = (metric_of(found[0].means) if found else "") or _TRAINING_LOSS
        if self._metric == _TRAINING_LOSS:
            loss = loss_of(self._setup)
            with on_a_copy(self._setup.model) as trial, torch.no_grad():
                return [Level(float(loss(trial, one)), 1, 0) for one in self._batches]
        return [Level(one.means.get(self._metric, math.nan), one.weight, one.samples) for one in found]

    # -- gradients -----------------------------------------------------------------------------------------------------

    def _gradients(self, coordinates: Coordinates) -> Flow:
        """Return the gradients of a masked copy, those of masked coordinates left out."""
        loss, batches = loss_of(self._setup), self._batches[:_FLOW_BATCHES]
        with on_a_copy(self._setup.model) as trial:
            parameters = {name: one for name, one in trial.named_parameters() if one.requires_grad}
            zero(dict(trial.named_parameters()), coordinates)
            trial.zero_grad(set_to_none=True)
            for one in batches:
                self._beat()
                with torch.enable_grad():
                    (loss(trial, one) / len(batches)).backward()
            gradients = {name: one.grad for name, one in parameters.items() if one.grad is not None}
            zero(gradients, {path: dims for path, dims in coordinates.items() if path in gradients})
            squares = {name: float(one.double().square().sum()) for name, one in gradients.items()}
        return Flow(
            math.sqrt(math.fsum(squares.values())),
            frozenset(name for name in parameters if not squares.get(name, 0.0)),
        )
