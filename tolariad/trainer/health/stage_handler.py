"""Between the announced stages and the daemon: a stage begins, the detector begins anew, and the daemon hears of it.

Promises: a stage begins between two steps, after the step before it is judged. It is reported before any step that it
affects, and before any checkpoint that contains it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tolariad.core import messages as m
from tolariad.core.calc.settings.model import Settings
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.orders.numbered import Kind

if TYPE_CHECKING:
    from tolariad.trainer.health.stages import Scope
    from tolariad.trainer.orders import BoundaryOrders, Link
    from tolariad.trainer.setup import Setup
    from tolariad.trainer.step.stepper import Stepper

# The type of the setting.
_PLANNED: Final = {one.name: one.type for one in msgspec.structs.fields(Settings)}["stages"]


class StageHandler:
    """Belongs to one trainer: begins the stages that were ordered or announced."""

    def __init__(self, setup: Setup, link: Link, orders: BoundaryOrders, stepper: Stepper) -> None:
        """Raises SetupRefused if the task's stages are none."""
        self._stages, self._watch, self._acted, self._stepper = setup.stages, setup.watch, setup.acted, stepper
        self._reporter, self._progress = link.reporter, link.progress
        setup.stages.stand_at(lambda: stepper.position)
        setup.stages.plan(stages_of(setup.task), m.BY_PROGRAM)
        setup.stages.plan(setup.settings.stages, m.BY_CONFIGURATION)
        orders.obey_by({m.BeginStage: Kind(self._begin)})

    def announce(self, why: str, scope: Scope) -> None:
        """Begin a stage before the next update, unless the run has it. Raises SetupRefused if `why` says nothing."""
        self._stages.announce(why, scope)
        self.tend()

    def tend(self) -> None:
        """Between two steps: begin the stages that are due. During a re-run they wait."""
        before_step = self._stepper.position.step + 1
        stages, progress = self._stages, self._progress
        if not (stages.waiting or before_step in stages.planned) or progress.rerunning or progress.is_behind:
            return
        # The detector judges the last step as one of the stage before.
        self._stepper.settle()
        for one in self._stages.due(before_step):
            if not self._stages.knows(one):
                self._watch.begin_anew()
                self._acted.add_own()
                self._stages.began(self._acted.count, one.why)
                epoch = self._stepper.position.epoch
                self._reporter.report(
                    m.StageReport(why=one.why, applied_before_step=before_step, epoch=epoch, by=one.by)
                )

    def follow(self, order: m.TrainFrom) -> None:
        """Stand at the restored state from which this order trains."""
        self._stages.follow(order.stages)

    def go_back(self) -> None:
        """Stand at the target of a rollback."""
        self._stages.go_back(self._acted.count)

    def _begin(self, order: m.BeginStage) -> None:
        """Begin a stage that was ordered, or that a script has. It is counted after this."""
        self._watch.begin_anew()
        self._stages.began(self._acted.count + 1, order.why)


def stages_of(task: Any) -> Mapping[int, str]:
    """Return the task's `stages`; {} if it has none. Raises SetupRefused."""
    given = getattr(task, "stages", None)
    # A task that is a module may have parts of this name.
    if not isinstance(given, Mapping):
        return {}
    try:
        stages: Mapping[int, str] = msgspec.convert(dict(given), _PLANNED)
    except (msgspec.ValidationError, ValueError) as error:
        what = "the task's `stages` must name each change by its first update, as in {1000: 'label smoothing on'}"
        raise SetupRefused(f"{what}: {error}") from error
    return stages
