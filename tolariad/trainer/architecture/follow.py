"""Optimizers and the moving average follow a change of the model.

Promises: a parameter that replaces another of its name stays with that one's owner, with the optimizer's state carried
along. A new parameter belongs to the only owner of its nearest enclosing module, else to the first owner. An optimizer
that the task's `grow` rebuilt itself, wholly or in part, keeps that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tolariad.core import messages as m
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.optim.mapping import ParameterMapping
from tolariad.trainer.optim.owners import parameters_of
from tolariad.trainer.optim.plan import RebuildRefused
from tolariad.trainer.optim.rebuild import OptimizerRebuildCoordinator

if TYPE_CHECKING:
    from torch import nn
    from torch.nn import Parameter

    from tolariad.trainer.lr import UnifiedLRController
    from tolariad.trainer.optim.average import Average
    from tolariad.trainer.optim.owners import Owner
    from tolariad.trainer.optim.rate_controller import Told


class Following:
    """Made before a change, while model and optimizers agree."""

    def __init__(
        self,
        model: nn.Module,
        owners: Sequence[Owner],
        rates: UnifiedLRController,
        average: Average | None,
        *,
        hosts: int | None = None,
    ) -> None:
        """`hosts`: the number of owners, from the first on, that are the host's; None: all of them.

        New parameters belong to the host's owners.
        """
        self._hosts = len(owners) if hosts is None else hosts
        self._model, self._optimizer_of, self._rates, self._average = model, owners, rates, average
        self._aborted = ""
        self._before = dict(model.named_parameters())
        names = {id(parameter): name for name, parameter in self._before.items()}
        self._owners: dict[str, int] = {}
        for index, owner in enumerate(owners):
            for parameter in parameters_of((owner,)):
                if id(parameter) not in names:
                    raise SetupRefused(
                        f"optimizer {owner.name} holds a parameter that is not in the model, of shape "
                        f"{tuple(parameter.shape)}"
                    )
                self._owners[names[id(parameter)]] = index

    def after(self, given: Any) -> None:
        """Follow the change. Raises SetupRefused.

        `given` is the value that the task's `grow` returned: mappings, or None.
        """
        mappings = _mappings(given)
        for owner, part in zip(self._optimizer_of, self._parts(mappings), strict=True):
            held = self._held_by(owner)
            if held.keys() == part.keys() and all(part[name] is parameter for name, parameter in held.items()):
                continue
            theirs = [mapping for mapping in mappings if mapping.new_id in part]
            if not self._rebuild(owner, held, theirs, part):
                raise SetupRefused(
                    f"the optimizer cannot follow this change: {self._aborted}. Let grow(model, change) return what it "
                    "needs"
                )
        if self._average is not None:
            self._average.follow(self._model, mappings)

    def _held_by(self, owner: Owner) -> dict[str, Parameter]:
        """Return an optimizer's parameters by their names before the change, or by new names if `grow` added them."""
        held = {id(parameter): parameter for parameter in parameters_of((owner,))}
        before = {name: one for name, one in self._before.items() if id(one) in held}
        if len(before) == len(held):
            return before
        now = {name: one for name, one in self._model.named_parameters() if id(one) in held}
        there = {id(one) for one in now.values()}
        return {name: one for name, one in before.items() if id(one) not in there} | now

    def _rebuild(
        self, owner: Owner, held: dict[str, Parameter], mappings: Sequence[ParameterMapping], part: dict[str, Parameter]
    ) -> bool:
        try:
            coordinator = OptimizerRebuildCoordinator(
                owner.optimizer, self._model, self._rates, on_event=self._hear, name=owner.name, held=held
            )
        except RebuildRefused as error:
            self._aborted = str(error)
            return False
        return coordinator.rebuild(mappings, among=part)

    def _hear(self, event: Told) -> None:
        if isinstance(event, m.OptimizerRebuildAborted):
            self._aborted = event.why

    def _parts(self, mappings: Sequence[ParameterMapping]) -> list[dict[str, Parameter]]:
        """The parameters of the changed model that need a gradient, or were held before, by owner."""
        by_object = {id(self._before[name]): owner for name, owner in self._owners.items()}
        by_object |= {
            id(parameter): index
            for index, owner in enumerate(self._optimizer_of)
            for parameter in parameters_of((owner,))
        }
        origins = {mapping.new_id: mapping.old_id for mapping in mappings}
        parts: list[dict[str, Parameter]] = [{} for _ in self._optimizer_of]
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
            inside = f"{module}." if module else ""
            found = {owner for held, owner in self._owners.items() if owner < self._hosts and held.startswith(inside)}
            if len(found) == 1:
                return found.pop()
        return 0


def _mappings(given: Any) -> Sequence[ParameterMapping]:
    if given is None:
        return ()
    if isinstance(given, list | tuple) and all(isinstance(one, ParameterMapping) for one in given):
        return given
    raise SetupRefused(f"grow(model, change) must return None or a list of ParameterMapping, not {given!r}")
