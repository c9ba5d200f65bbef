"""Create a new optimizer for a changed architecture, with the state of the old one.

Promises: the old optimizer, its model and the rates do not change until the new optimizer is complete and checked. Then
it replaces the old one in the rate controller in one assignment, and the schedules continue.
"""

from __future__ import annotations

import inspect
import logging
import time
from typing import TYPE_CHECKING, Any

from tolariad.core.health.budgets import BUDGETS
from tolariad.core.rates.words import (
    OptimizerRebuildAborted,
    OptimizerRebuildCommitted,
    OptimizerRebuildPrepared,
)
from tolariad.trainer.optim.plan import fresh_state, held_names, prepare
from tolariad.trainer.optim.rate_controller import tell_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn
    from torch.optim import Optimizer

    from tolariad.trainer.optim.mapping import ParameterMapping
    from tolariad.trainer.optim.plan import Plan
    from tolariad.trainer.optim.rate_controller import RateController, Tell

_log = logging.getLogger(__name__)
_PARAMETERS = ("params", "param_names")


class DynamicOptimizerStatePreserver:
    """Preserves the state of an optimizer across a change of architecture (source document 000).

    Supports Adam, AdamW, CautiousAdamW, SGD, RMSprop and Adagrad. `unified_lr_controller` controls the old optimizer
    and gets the new one; None if nothing controls the rates. `on_event` receives OptimizerRebuildPrepared, then
    Committed or Aborted, with `name` as the optimizer's name.
    """

    def __init__(
        self, unified_lr_controller: RateController | None, *, on_event: Tell | None = None, name: str = "primary"
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
        """Return the optimizer of `new_model`: every group with its options, every mapped parameter with its state.

        Parameters without a mapping are matched: first the same object, then the same qualified name with the same
        shape (identity) or a shape that only grew (expand). Any other parameter is new: the controller adds a group for
        it; without a controller it gets the first group's options. If both models hold the same Parameter object, its
        state is not copied; do not step the old optimizer again then.

        Raises AmbiguousMapping if a mapping must be given, ValueError if one is impossible, TypeError for an optimizer
        of another class. After an exception optimizer, models and controller are unchanged, bit for bit.
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


def adopt(controller: RateController | None, old: Optimizer, new: Optimizer, plan: Plan) -> None:
    """Register `new` (which may be `old`) with the controller and add the plan's new parameters: both or neither."""
    if controller is not None:
        controller.replace_optimizer(old, new)
    try:
        _add(controller, new, plan)
    except Exception:
        if controller is not None and new is not old:
            controller.replace_optimizer(new, old)
        raise


def _add(controller: RateController | None, optimizer: Optimizer, plan: Plan) -> None:
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
    """Return a new optimizer of the same class with the plan's parameters."""
    groups = []
    for group, places in zip(old.param_groups, plan.groups, strict=True):
        options = {key: value for key, value in group.items() if key not in _PARAMETERS}
        named = "param_names" in group
        groups.append(
            {**options, "params": [(place.mapping.new_id, place.new) if named else place.new for place in places]}
        )
    # The groups contain every option. The defaults, for groups added later, are the constructor's arguments.
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
    """Return the milliseconds since `started`.

    Warn in the log about an overrun, or about state that was not carried over.
    """
    elapsed_ms = (time.perf_counter() - started) * 1000.0
    if elapsed_ms > budget_ms:
        _log.warning("an optimizer rebuild took %.1f ms, its budget is %g ms", elapsed_ms, budget_ms)
    if plan.unknown:
        _log.warning("an optimizer rebuild did not carry over entries of unknown kind: %s", ", ".join(plan.unknown))
    return elapsed_ms
