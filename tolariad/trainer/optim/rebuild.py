"""Rebuild a live optimizer between two steps: parameters of a grown model replace their predecessors.

Promises: everything is prepared as a copy and checked before anything changes. An abort leaves optimizer, model and
rates unchanged, bit for bit. After a commit this module holds no old parameter. The cost depends on what changed, not
on the size of the model.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from tolariad.core import messages as m
from tolariad.trainer.optim.plan import RebuildRefused, fresh_state, prepare
from tolariad.trainer.optim.rate_controller import tell_all

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn
    from torch.nn import Parameter
    from torch.optim import Optimizer

    from tolariad.trainer.optim.mapping import ParameterMapping
    from tolariad.trainer.optim.plan import Plan
    from tolariad.trainer.optim.rate_controller import RateController, Tell

_log = logging.getLogger(__name__)
_PARAMETERS = ("params", "param_names")


class OptimizerRebuildCoordinator:
    """Keeps an optimizer in step with a growing model (source document 003).

    Create it while `optimizer` and `model` have the same parameters: it records their names then and after every
    commit. `unified_lr_controller` controls the optimizer; None if nothing controls the rates. `max_rebuild_time_ms` is
    a soft budget: an overrun is logged. `on_event` receives OptimizerRebuildPrepared, then Committed or Aborted.
    `held`: the optimizer's parameters by name, if the model has changed already. Raises RebuildRefused if the optimizer
    holds a parameter that is not in the model, or not in `held`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        model: nn.Module,
        unified_lr_controller: RateController | None,
        max_rebuild_time_ms: float = 10,
        *,
        on_event: Tell | None = None,
        name: str = "primary",
        held: Mapping[str, Parameter] | None = None,
    ) -> None:
        self.optimizer = optimizer
        self.model = model
        self.max_rebuild_time_ms = max_rebuild_time_ms
        self._controller = unified_lr_controller
        self._tell: Tell = tell_all(on_event, unified_lr_controller)
        self._name = name
        self._known = self._held(dict(model.named_parameters()) if held is None else held)

    async def handle_parameter_addition(
        self,
        layer_id: str,
        old_shape: Sequence[int],
        new_shape: Sequence[int],
        parameter_name: str,
        *,
        mapping: ParameterMapping | None = None,
    ) -> bool:
        """Do the same as `add_parameter`, for asyncio code. It never awaits, so no step can take place in between."""
        return self.add_parameter(layer_id, old_shape, new_shape, parameter_name, mapping=mapping)

    def add_parameter(
        self,
        layer_id: str,
        old_shape: Sequence[int],
        new_shape: Sequence[int],
        parameter_name: str,
        *,
        mapping: ParameterMapping | None = None,
    ) -> bool:
        """Update the optimizer after `layer_id.parameter_name` was replaced by a parameter of `new_shape`, or added.

        Return True on success. Return False if it was impossible: nothing has changed then, and the log and the event
        give the reason. If the optimizer knows the name, the new parameter replaces the old one. Its state is carried
        over by `mapping` (by default old units first, new ones after them). Otherwise the controller adds a group for
        it. Other parameters that have changed need calls of their own, or `rebuild`.
        """
        name = f"{layer_id}.{parameter_name}" if layer_id else parameter_name

        def new() -> dict[str, Parameter]:
            found = dict(self.model.named_parameters()).get(name)
            before = self._known.get(name)
            if found is None or tuple(found.shape) != _shape(new_shape):
                what = "is not there" if found is None else f"has shape {tuple(found.shape)}"
                raise RebuildRefused(f"{name} of shape {_shape(new_shape)} was announced; in the model it {what}")
            if before is found:
                raise RebuildRefused(f"{name} is the parameter that the optimizer holds already")
            if before is not None and tuple(before.shape) != _shape(old_shape):
                raise RebuildRefused(f"{name} had shape {tuple(before.shape)}, not {_shape(old_shape)}")
            return {**self._known, name: found}

        return self._follow(new, [mapping] if mapping is not None else [])

    def rebuild(
        self, parameter_mappings: Sequence[ParameterMapping] = (), *, among: Mapping[str, Parameter] | None = None
    ) -> bool:
        """Update the optimizer to all changes of the model at once. Return True, or False with nothing changed.

        `among`: the parameters that this optimizer is to hold, by name, if there are other optimizers. Parameters
        without a mapping are matched. First comes the same object, then the same qualified name with the same shape
        (identity) or one that only grew (expand). Any other is new: the controller adds a group for it; without a
        controller it gets the first group's options. Parameters that are gone are dropped.
        """
        return self._follow(lambda: dict(self.model.named_parameters() if among is None else among), parameter_mappings)

    def _follow(self, new: Any, mappings: Sequence[ParameterMapping]) -> bool:
        started = time.perf_counter()
        try:
            names = new()
            self._held(self._known)
            plan = prepare(self.optimizer, self._known, names, mappings)
            self._tell(m.OptimizerRebuildPrepared(optimizer=self._name, counts=plan.counts()))
            self._commit(plan)
        except Exception as error:  # noqa: BLE001 - reported and logged
            # The run continues with the optimizer as it was; event and log give the reason.
            why = f"{type(error).__name__}: {error}"
            _log.error("an optimizer rebuild was aborted: %s", why)
            self._tell(m.OptimizerRebuildAborted(optimizer=self._name, why=why))
            return False
        elapsed_ms = _report(started, self.max_rebuild_time_ms, plan)
        self._tell(m.OptimizerRebuildCommitted(optimizer=self._name, counts=plan.counts(), elapsed_ms=elapsed_ms))
        return True

    def _commit(self, plan: Plan) -> None:
        optimizer = self.optimizer
        before = [(group, list(group["params"]), group.get("param_names")) for group in optimizer.param_groups]
        state = dict(optimizer.state)
        try:
            _place(optimizer, plan)
            if self._controller is not None:
                self._controller.replace_optimizer(optimizer, optimizer)
            _add(self._controller, optimizer, plan)
            self._known = self._held(_placed(plan))
        except Exception:
            optimizer.param_groups[:] = [group for group, _, _ in before]
            for group, params, names in before:
                group["params"][:] = params
                if names is not None:
                    group["param_names"] = names
            optimizer.state.clear()
            optimizer.state.update(state)
            if self._controller is not None:
                self._controller.replace_optimizer(optimizer, optimizer)
            raise

    def _held(self, names: Mapping[str, Parameter]) -> dict[str, Parameter]:
        """Return the optimizer's parameters by name. Raises RebuildRefused if one has no name."""
        by_object = {id(parameter): name for name, parameter in names.items()}
        held = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        strange = [tuple(parameter.shape) for parameter in held if id(parameter) not in by_object]
        if strange:
            raise RebuildRefused(f"the optimizer holds parameters that are not the model's, of shapes {strange[:5]}")
        return {by_object[id(parameter)]: parameter for parameter in held}


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


def _place(optimizer: Optimizer, plan: Plan) -> None:
    """Write the plan's groups and state into the existing lists and dicts."""
    for group, places in zip(optimizer.param_groups, plan.groups, strict=True):
        for parameter in group["params"]:
            optimizer.state.pop(parameter, None)
        group["params"][:] = [place.new for place in places]
        if "param_names" in group:
            group["param_names"] = [place.mapping.new_id for place in places]
        for place in places:
            state = place.state if place.state is not None else fresh_state(optimizer, place.new)
            if state is not None:
                optimizer.state[place.new] = state


def _placed(plan: Plan) -> dict[str, Parameter]:
    """Return the names of the optimizer's parameters after the plan. The model may have changed further."""
    placed = {place.mapping.new_id: place.new for places in plan.groups for place in places}
    return placed | dict(plan.added)


def _shape(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(size) for size in shape)


def _report(started: float, budget_ms: float, plan: Plan) -> float:
    """Return the milliseconds since `started`.

    Warn in the log about an overrun, or about state that was not carried over.
    """
    elapsed_ms = (time.perf_counter() - started) * 1000.0
    if elapsed_ms > budget_ms:
        _log.warning("an optimizer rebuild took %.1f ms, its budget is %g ms", elapsed_ms, budget_ms)
    if plan.unknown:
        _log.warning("an optimizer rebuild did not carry over entries of unknown kind: %s", ", ".join(plan.unknown))
    return elapsed_ms
