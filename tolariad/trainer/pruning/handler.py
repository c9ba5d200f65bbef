"""Masks and compactions, as boundary orders: compared with the model as it is now, obeyed, and answered.

Promises: an order that does not fit changes nothing. It is judged once: in a re-run, and after a restart, it is
repeated from what was recorded, without a forward pass.
"""

from __future__ import annotations

import logging
import statistics
import time
from typing import TYPE_CHECKING, Any, Final

import torch
from msgspec.structs import replace

from tolariad.channel import Activity
from tolariad.core import messages as m
from tolariad.core.calc.pruning.ledger import COMPACT
from tolariad.failpoints import reached
from tolariad.trainer.data.randomness import derived_seed, preserved_rng
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.orders.numbered import Kind, OrderRefused
from tolariad.trainer.pruning.compaction import sizes, try_compaction
from tolariad.trainer.pruning.inputs import noise_like
from tolariad.trainer.pruning.plan import structure_of
from tolariad.trainer.pruning.units import PruningRefused
from tolariad.trainer.torch_private.tensors import leaves_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from tolariad.trainer.parts.part import Orders, Trained
    from tolariad.trainer.pruning.plan import Plan
    from tolariad.trainer.setup import Setup

_log: Final = logging.getLogger(__name__)
# Passes that are timed, after one that is not; of a slow model fewer.
_PASSES: Final = 5
_TIMED_S: Final = 5.0


class PruneHandler:
    """Carries out the orders of one trainer. `orders`: how, by kind."""

    def __init__(self, setup: Setup, trained: Trained) -> None:
        self._setup, self._pruner = setup, setup.pruner
        self._reporter, self._progress = trained.link.reporter, trained.link.progress
        self._reshaped, self._rewritten = trained.reshaped, trained.rewritten
        self.orders: Orders = {
            m.MaskUnits: Kind(self._tried(self._mask_new), repeat=self._mask),
            m.ReleaseMasks: Kind(self._tried(self._release), repeat=self._release),
            # A compaction was answered: an optimizer's groups may have followed it.
            m.CompactModel: Kind(self._tried(self._compact), repeat=self._cut, after=trained.regrouped),
        }

    @property
    def _before_step(self) -> int:
        return self._progress.step + 1

    def _tried(self, obey: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a function that obeys a new order, or raises OrderRefused with nothing changed."""

        def tried(order: Any) -> Any:
            reached("prune_order")
            try:
                return obey(order)
            except (PruningRefused, SetupRefused) as refused:
                raise OrderRefused(str(refused)) from refused

        return tried

    def _mask_new(self, order: m.MaskUnits) -> m.MasksAppliedReport:
        """Mask units if the model still does without them: training has passed since they were analysed."""
        # Imported here: a run that prunes nothing needs none of it.
        from tolariad.trainer.pruning.recheck import recheck

        coordinates = self._pruner.fitting(order).gone.parameters
        found = recheck(self._setup, coordinates, lambda: self._reporter.beat(Activity.VALIDATE))
        report = self._mask(order)
        if found is None:
            return report
        return replace(report, accuracy_now=found.before.accuracy, accuracy_masked=found.masked.accuracy)

    def _mask(self, order: m.MaskUnits) -> m.MasksAppliedReport:
        covered = self._pruner.mask(order, self._before_step)
        self._rewritten()
        reached("prune_acted")
        _log.info(
            "cycle %d of pruning: %d parameters are masked from step %d on",
            *(order.cycle, covered.fresh, self._before_step),
        )
        return m.MasksAppliedReport(
            order=0,
            applied_before_step=0,
            parameters=covered.numbers,
            pruned_parameters=covered.fresh,
            model_hash=structure_of(self._setup.model),
        )

    def _release(self, order: m.ReleaseMasks) -> m.MasksReleasedReport:
        count = self._pruner.release(order.cycle)
        self._rewritten()
        reached("prune_acted")
        _log.info("the masks of cycle %d are lifted from step %d on", order.cycle, self._before_step)
        return m.MasksReleasedReport(order=0, applied_before_step=0, parameters=count)

    # -- compaction ----------------------------------------------------------------------------------------------------

    def _compact(self, order: m.CompactModel) -> m.ModelCompactedReport:
        """Try it on copies, measure both, and do it."""
        setup, plan = self._setup, self._pruner.plan_of_all()
        if order.units != plan.units:
            raise PruningRefused("other units are masked than those that it names")
        if setup.settings.compile:
            raise PruningRefused("compile is true: the compiler may give the smaller model other bits after a restart")
        if growing := [plot.name for plot in setup.garden.growing if not plot.is_permanent]:
            raise PruningRefused(f"slot {growing[0]} holds a seed that is not a part of the model yet")
        self._reporter.beat(Activity.HOOK)
        difference, seconds = self._measured(plan)
        before = sizes(setup.model, setup.owners)
        self._cut(m.CompactModel(cycle=order.cycle, units=order.units, removal=plan.text))
        self._reshaped()
        parameters, held = sizes(setup.model, setup.owners)
        _log.info("the model is compacted: %d parameters instead of %d", parameters, before[0])
        return m.ModelCompactedReport(
            order=0,
            applied_before_step=0,
            removal=plan.text,
            parameters_before=before[0],
            parameters=parameters,
            bytes_before=before[1],
            bytes=held,
            step_s_before=seconds[0],
            step_s=seconds[1],
            difference=difference,
        )

    def _measured(self, plan: Plan) -> tuple[float, tuple[float, float]]:
        """Return the difference of the outputs, and the seconds of a pass before and after. All of it is on copies.

        Raises PruningRefused if the model cannot be copied or the units cannot be removed.
        """
        setup = self._setup
        generator = torch.Generator().manual_seed(derived_seed(setup.rng_seed, "compaction"))
        try:
            with preserved_rng():
                inputs = noise_like(plan.inputs, generator, setup.device)["arguments"]
                trial = try_compaction(setup.model, plan, inputs)
                with setup.forward():
                    return trial.difference, (seconds_of(trial.masked, inputs), seconds_of(trial.small, inputs))
        except PruningRefused:
            raise
        except Exception as error:
            # The model's own code runs here, and memory for the copies may be short.
            _log.exception("the trial of a compaction raised")
            raise PruningRefused(f"its trial on a copy raised {type(error).__name__}: {error}") from error

    def _cut(self, order: m.CompactModel) -> None:
        """Remove what was recorded, by a change of the ledger."""
        self._setup.ledger.order(COMPACT, order.removal, before_step=self._before_step)
        reached("prune_acted")


def seconds_of(model: nn.Module, inputs: tuple[Any, ...]) -> float:
    """Return the median seconds of a forward and backward pass, after one that is not timed. Waits for the device."""
    times: list[float] = []
    begun = time.perf_counter()
    while not times or (len(times) <= _PASSES and time.perf_counter() - begun < _TIMED_S):
        started = time.perf_counter()
        outputs = [one for one in leaves_in(model(*inputs)) if isinstance(one, torch.Tensor) and one.requires_grad]
        if outputs:
            torch.autograd.backward([one.abs().sum() for one in outputs])
        model.zero_grad(set_to_none=True)
        if any(parameter.is_cuda for parameter in model.parameters()):
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:] or times)
