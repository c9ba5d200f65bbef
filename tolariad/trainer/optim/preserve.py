"""A new optimizer for a changed architecture, with the state of the old one.

Promises: the old optimizer, its model and the rates are untouched until the new optimizer is complete and checked; then it
takes the old one's place in the rate controller in one assignment, and the learning rates go on where they were.
It must not know: what changed the architecture, and why.
"""

from __future__ import annotations

import inspect
import logging
import time
from typing import TYPE_CHECKING, Any

from tolariad.core.health.budgets import BUDGETS
from tolariad.core.rates.optimizer_words import (
    OptimizerRebuildAborted,
    OptimizerRebuildCommitted,
    OptimizerRebuildPrepared,
)
from tolariad.trainer.optim.owner import tell_all
from tolariad.trainer.optim.plan import fresh_state, held_names, prepare

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn
    from torch.optim import Optimizer

    from tolariad.trainer.optim.mapping import ParameterMapping
    from tolariad.trainer.optim.owner import RateOwner, Tell
    from tolariad.trainer.optim.plan import Plan

_log = logging.getLogger(__name__)
_PARAMETERS = ("params", "param_names")


class DynamicOptimizerStatePreserver:
    """Adam, AdamW, CautiousAdamW, SGD, RMSprop and Adagrad across changes of architecture (source document 000).

    `unified_lr_controller` holds the old optimizer and gets the new one; None where nobody controls the rates. `on_event`
    gets OptimizerRebuildPrepared, then Committed or Aborted; `name` is the optimizer's in them.
    """

    def __init__(
        self, unified_lr_controller: RateOwner | None, *, on_event: Tell | None = None, name: str = "primary"
    ) -> None:
        self._controller = unified_lr_controller
        self._tell: Tell = tell_all(on_event, unified_lr_controller)
        self._name = name

    def preserve_optimizer_state(
        self,
        old_optimizer: Optimizer,
        new_model: nn.Module,
        old_model: nn.Module,
        parameter_mappings: Sequence[ParameterMapping] | None = None,
    ) -> Optimizer:
        """The optimizer of `new_model`: every group with every option, every mapped parameter with its state.

        Parameters that no mapping names are matched: the same object first, then the same qualified name with the same
        shape (identity) or one that only grew (expand). What matches nothing is new, and gets a group of its own from the
        controller (without one, the first group's options). An identity's state is taken over without a copy where both
        models hold the same Parameter object; the old optimizer is not to be stepped again then.

        Raises AmbiguousMapping or ValueError for what cannot be told or cannot be, TypeError for an optimizer of another
        class. Whatever is raised, optimizer, models and controller are bit for bit what they were.
        """
        started = time.perf_counter()
        try:
            old = held_names(old_optimizer, dict(old_model.named_parameters()))
            plan = prepare(old_optimizer, old, dict(new_model.named_parameters()), parameter_mappings or ())
            new_optimizer = _constructed(old_optimizer, plan)
            self._tell(OptimizerRebuildPrepared(optimizer=self._name, counts=plan.counts()))
            adopt(self._controller, old_optimizer, new_optimizer, plan)
        except Exception as error:
            self._tell(OptimizerRebuildAborted(optimizer=self._name, why=f"{type(error).__name__}: {error}"))
            raise
        elapsed_ms = report(started, BUDGETS["optimizer_rebuild"].limit, plan)
        self._tell(OptimizerRebuildCommitted(optimizer=self._name, counts=plan.counts(), elapsed_ms=elapsed_ms))
        return new_optimizer


def adopt(controller: RateOwner | None, old: Optimizer, new: Optimizer, plan: Plan) -> None:
    """Give `new` (which may be `old`) to the controller, and the plan's new parameters to `new`; both or neither."""
    if controller is not None:
        controller.replace_optimizer(old, new)
    try:
        _add(controller, new, plan)
    except Exception:
        if controller is not None and new is not old:
            controller.replace_optimizer(new, old)
        raise


def _add(controller: RateOwner | None, optimizer: Optimizer, plan: Plan) -> None:
    if not plan.added:
        return
    named = any("param_names" in group for group in optimizer.param_groups)
    parameters: list[Any] = list(plan.added) if named else [parameter for _, parameter in plan.added]
    if controller is None:
        options = {key: value for key, value in optimizer.param_groups[0].items() if key not in _PARAMETERS}
        optimizer.add_param_group({**options, "params": parameters})
    else:
        controller.add_new_parameters(optimizer, parameters)
    for _, parameter in plan.added:
        state = fresh_state(optimizer, parameter)
        if state is not None:
            optimizer.state[parameter] = state


def _constructed(old: Optimizer, plan: Plan) -> Optimizer:
    """An optimizer of the same class with the plan's places; nobody has it yet."""
    groups = []
    for group, places in zip(old.param_groups, plan.groups, strict=True):
        options = {key: value for key, value in group.items() if key not in _PARAMETERS}
        named = "param_names" in group
        groups.append(
            {**options, "params": [(place.mapping.new_id, place.new) if named else place.new for place in places]}
        )
    # The groups bring every option; the defaults, for groups that come later, are the constructor's arguments.
    known = inspect.signature(type(old)).parameters
    kind: Any = type(old)
    new: Optimizer = kind(groups, **{key: value for key, value in old.defaults.items() if key in known})
    if hasattr(old, "track_kept_fraction"):
        new.__dict__["track_kept_fraction"] = old.track_kept_fraction
    for place in (place for places in plan.groups for place in places):
        if place.state is not None:
            new.state[place.new] = place.state
    return new


def report(started: float, budget_ms: float, plan: Plan) -> float:
    """Milliseconds since `started`; said in the log where they are more than the budget, or where state was left behind."""
    elapsed_ms = (time.perf_counter() - started) * 1000.0
    if elapsed_ms > budget_ms:
        _log.warning("an optimizer rebuild took %.1f ms, its budget is %g ms", elapsed_ms, budget_ms)
    if plan.unknown:
        _log.warning("an optimizer rebuild left entries of no known kind behind: %s", ", ".join(plan.unknown))
    return elapsed_ms
