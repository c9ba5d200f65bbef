"""Optimizers and the moving average follow a change of the model.

Promises: a parameter that replaces another of its name stays with that one's owner, with the optimizer's state carried along; a
new parameter belongs to the only owner of its nearest enclosing module, else to the first owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tolariad.core.rates.words import OptimizerRebuildAborted
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.optim.mapping import ParameterMapping
from tolariad.trainer.optim.rebuild import OptimizerRebuildCoordinator

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn
    from torch.nn import Parameter
    from torch.optim import Optimizer

    from tolariad.trainer.lr import UnifiedLRController
    from tolariad.trainer.optim.average import Average
    from tolariad.trainer.optim.owners import Owner
    from tolariad.trainer.optim.rate_controller import Tell, Told


class _Rates:
    """The rate controller for a rebuild that belongs to a recorded change: it is reported by the ledger."""

    def __init__(self, rates: UnifiedLRController) -> None:
        self._rates = rates

    def replace_optimizer(self, old: Optimizer, new: Optimizer) -> None:
        self._rates.replace_optimizer(old, new)

    def add_new_parameters(
        self, optimizer: Optimizer, new_params: Iterable[Any], parent_group_name: str | None = None
    ) -> Any:
        return self._rates.add_new_parameters(optimizer, new_params, parent_group_name)


class Following:
    """Made before a change, while model and optimizers agree."""

    def __init__(
        self,
        model: nn.Module,
        owners: Sequence[Owner],
        rates: UnifiedLRController,
        average: Average | None,
        tell: Tell,
    ) -> None:
        """`tell` is given the events of the rebuilds."""
        self._model, self._average, self._tell = model, average, tell
        self._aborted = ""
        self._coordinators = [
            OptimizerRebuildCoordinator(one.optimizer, model, _Rates(rates), on_event=self._hear, name=one.name)
            for one in owners
        ]
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._owners: dict[str, int] = {
            names[id(parameter)]: index
            for index, owner in enumerate(owners)
            for group in owner.optimizer.param_groups
            for parameter in group["params"]
        }
        self._before = dict(model.named_parameters())

    def after(self, given: Any) -> None:
        """Follow the change. `given`: what the task's `grow` returned, mappings or None. Raises SetupRefused."""
        mappings = _mappings(given)
        parts = self._parts(mappings)
        for index, coordinator in enumerate(self._coordinators):
            part = parts[index]
            theirs = [mapping for mapping in mappings if mapping.new_id in part]
            held = {name: self._before[name] for name, owner in self._owners.items() if owner == index}
            if held.keys() == part.keys() and all(part[name] is parameter for name, parameter in held.items()):
                continue
            if not coordinator.rebuild(theirs, among=part):
                raise SetupRefused(
                    f"the optimizer cannot follow this change: {self._aborted}. Let grow(model, change) return what it needs"
                )
        if self._average is not None:
            self._average.follow(self._model, mappings)

    def _hear(self, event: Told) -> None:
        if isinstance(event, OptimizerRebuildAborted):
            self._aborted = event.why
        self._tell(event)

    def _parts(self, mappings: Sequence[ParameterMapping]) -> list[dict[str, Parameter]]:
        """The parameters of the changed model that need a gradient, or were held before, by owner."""
        by_object = {id(self._before[name]): owner for name, owner in self._owners.items()}
        origins = {mapping.new_id: mapping.old_id for mapping in mappings}
        parts: list[dict[str, Parameter]] = [{} for _ in self._coordinators]
        for name, parameter in self._model.named_parameters():
            owner = by_object.get(id(parameter), self._owners.get(origins.get(name, name)))
            if owner is None and parameter.requires_grad:
                owner = self._nearest(name)
            if owner is not None:
                parts[owner][name] = parameter
        return parts

    def _nearest(self, name: str) -> int:
        """The owner of a new parameter."""
        module = name
        while module:
            module = module.rpartition(".")[0]
            found = {owner for held, owner in self._owners.items() if held.startswith(f"{module}." if module else "")}
            if len(found) == 1:
                return found.pop()
        return 0


def _mappings(given: Any) -> Sequence[ParameterMapping]:
    if given is None:
        return ()
    if isinstance(given, list | tuple) and all(isinstance(one, ParameterMapping) for one in given):
        return given
    raise SetupRefused(f"grow(model, change) must return None or a list of ParameterMapping, not {given!r}")
