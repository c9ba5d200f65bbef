"""The findings of structured pruning in a model, for the check before a run."""

from __future__ import annotations

import time
import traceback
from typing import TYPE_CHECKING

import msgspec

from tolariad.core.calc.pruning.analysis import AnalysisRequest, channels_of, choice_of, smallest_units
from tolariad.core.calc.pruning.budget import UnitKind
from tolariad.core.calc.pruning.phase import PruningPhase
from tolariad.core.calc.pruning.plan import plan_of
from tolariad.core.calc.pruning.schedule import budget_at, cap_at
from tolariad.trainer.pruning.counting import counted_groups
from tolariad.trainer.pruning.evidence import groups_of, protected, training_data
from tolariad.trainer.pruning.units import PruningRefused

if TYPE_CHECKING:
    from tolariad.trainer.pruning.units import Found
    from tolariad.trainer.setup import Setup


class RefusedModule(msgspec.Struct, frozen=True):
    """A module whose channels cannot be pruned, and why, as a clause."""

    name: str
    why: str


class Prunable(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a model that can be pruned.

    * `why`: the reason why an analysis is impossible; "" if it is possible.
    * `layers`, `channels`: the layers whose channels can be masked, and the number of these channels.
    * `attentions`, `heads`: the attention layers whose heads can be masked, and the number of these heads.
    * `total`: the channels of all of them, those of the heads included.
    * `parameters`: the number of the model's parameters; shares are shares of this number.
    * `budget`: the number of parameters that the first cycle that may mask can take.
    * `first`: the number of channels that it can take, if those with the fewest parameters are taken.
    * `masked_only`: the layers whose units can be masked but not removed, with the reasons.
    """

    why: str = ""
    layers: int = 0
    channels: int = 0
    attentions: int = 0
    heads: int = 0
    total: int = 0
    parameters: int = 0
    budget: int = 0
    first: int = 0
    refused: tuple[RefusedModule, ...] = ()
    masked_only: tuple[RefusedModule, ...] = ()
    seconds: float = 0.0


def prunable(setup: Setup) -> Prunable | None:
    """Return what can be pruned in the run's model; None if the run does not prune.

    It changes the process-wide generators. Any failure is an answer, as that of an analysis would be in the run.
    """
    if not setup.settings.prune.enabled:
        return None
    begun = time.perf_counter()
    try:
        first, _ = training_data(setup, 1, 1)
        found = groups_of(setup, first)
    except PruningRefused as refused:
        return Prunable(why=str(refused))
    except Exception as error:  # noqa: BLE001 - as in worker.py: whatever the task or a package raises is the answer
        traceback.print_exception(error)
        return Prunable(why=f"the analysis would raise {type(error).__name__}: {error}")
    return _counted(setup, found, time.perf_counter() - begun)


def _counted(setup: Setup, found: Found, seconds: float) -> Prunable:
    plan, prune = plan_of(setup.settings), setup.settings.prune
    first = plan.transition_epoch + 1
    request = AnalysisRequest(
        cycle=1,
        checkpoint="",
        manifest="",
        epoch=first,
        phase=PruningPhase.ACTIVE_PRUNING,
        share=budget_at(plan, first),
        cap=cap_at(plan, first),
    )
    counted = counted_groups(setup.model, found.groups, [f"{name}." for name in protected(setup)])
    choice = choice_of(counted.groups, counted.shapes, counted.parameters, request)
    units = smallest_units(choice, prune)
    heads = [one for one in counted.groups if one.kind is UnitKind.HEAD]
    return Prunable(
        layers=len(counted.groups) - len(heads),
        channels=sum(one.width * one.channels for one in counted.groups if one.kind is UnitKind.CHANNEL),
        attentions=len(heads),
        heads=sum(one.width for one in heads),
        total=channels_of(choice.layers),
        parameters=choice.total,
        budget=choice.allowed,
        first=sum(one.channels * len(units.get(one.name, ())) for one in counted.groups),
        refused=tuple(RefusedModule(one.name, one.why) for one in found.refused),
        masked_only=tuple(RefusedModule(one.name, one.fixed) for one in found.groups if one.fixed),
        seconds=seconds,
    )
