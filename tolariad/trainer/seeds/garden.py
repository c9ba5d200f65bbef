"""The garden: the slots of a run and the seeds in them, each with an optimizer of its own.

A seed is put into its slot, and taken out of it, by changes of the architecture ledger (`seed.germinate`,
`seed.remove`), which this module makes. Its other moves change no shape. docs/growing.md describes a seed's life.

Promises: the host's parameters, optimizers and random generators are never touched. A seed is a pure function of the
run's seed, its slot, its number and its blueprint, so it can be built again. Alpha is a pure function of the applied
steps. A run without slots pays for none of this.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tolariad.core import state as st
from tolariad.core.calc.seeds.ledger import GERMINATE, REMOVE
from tolariad.failpoints import reached
from tolariad.trainer.data.randomness import derived_seed, preserved_rng, seed_everything
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.optim.owners import Owner
from tolariad.trainer.seeds.places import slots_of
from tolariad.trainer.seeds.plots import Plot
from tolariad.trainer.seeds.registry import blueprint_names, find_blueprint, source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import nn

    from tolariad.core import messages as m
    from tolariad.trainer.architecture import Ledger
    from tolariad.trainer.lr import UnifiedLRController
    from tolariad.trainer.seeds.optimizers import SeedOptimizers
    from tolariad.trainer.seeds.slot import SeedSlot


class Garden:
    """The slots and seeds of one built run.

    * `active`: whether a slot holds a module.
    * `attends`: whether there is something to do at boundaries.
    * `growing`: the plots with a module, in the order of the slots.
    * `prefixes`: the beginnings of the names of their tensors.
    * `optimizers`: makes the optimizers of seeds.
    """

    def __init__(
        self,
        slots: Mapping[str, SeedSlot],
        ledger: Ledger,
        owners: list[Owner],
        rates: UnifiedLRController,
        optimizers: SeedOptimizers,
        *,
        rng_seed: int,
        blueprints: tuple[str, ...] = (),
        sources: tuple[m.BlueprintSource, ...] = (),
    ) -> None:
        """`owners`: the run's owners; at this point there are only the host's. The list is changed in place.

        `blueprints`: the blueprints that the configuration names. `sources`: the files of these.
        """
        model = ledger.model
        names = {id(module): name for name, module in model.named_modules()}
        self.plots = {name: Plot(slot, f"{names[id(slot)]}.seed.".lstrip(".")) for name, slot in slots.items()}
        self._model, self._owners, self._rates, self.optimizers = model, owners, rates, optimizers
        self._host = tuple(owners)
        self._rng_seed, self._configured, self.sources = rng_seed, blueprints, sources
        self._is_looking = bool(slots)
        self.growing: tuple[Plot, ...] = ()
        self.prefixes: tuple[str, ...] = ()
        self.active = False
        self.attends = self._is_looking
        ledger.make_by({GERMINATE: self._germinate, REMOVE: self._remove} if slots else {}, self._check)
        if slots:
            ledger.notify(self._look_again)

    # -- changes of the model's shape ----------------------------------------------------------------------------------

    def plot(self, name: str) -> Plot:
        """Return the plot of a slot. Raises SetupRefused."""
        plot = self.plots.get(name)
        if plot is None:
            known = ", ".join(self.plots) or "none"
            raise SetupRefused(f"the model has no slot {name!r}; its slots: {known}")
        return plot

    def build(self, arguments: Mapping[str, Any]) -> nn.Module:
        """Build a seed's module from the arguments of its germination. Draws from no generator of the run's.

        Raises SetupRefused, or what the blueprint raises.
        """
        slot = self.plot(arguments["slot"]).slot
        example = slot.example(tuple(arguments["example"]), arguments["dtype"])
        with preserved_rng():
            # To find a blueprint may import it, which may draw.
            blueprint = find_blueprint(arguments["blueprint"], arguments["parameters"])
            seed_everything(derived_seed(self._rng_seed, "seed", slot.name, arguments["number"]))
            module = blueprint.build(example)
        return module.to(example.device)

    @staticmethod
    def source_of(blueprint: str) -> str:
        """Return the hash of the file of a user's blueprint, as it is now; "" of a built-in one."""
        with preserved_rng():
            return source_of(blueprint)

    def _germinate(self, change: m.ScriptChange) -> None:
        arguments = json.loads(change.arguments)
        plot = self.plot(arguments["slot"])
        module = self.build(arguments)
        plot.slot.plant(module)
        reached("seed_planted")
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        owner = Owner(st.group_of(plot.name), self.optimizers.make(trained))
        owned = {one.name: one for one in (*self._owners[len(self._host) :], owner)}
        in_order = (owned[name] for one in self.plots if (name := st.group_of(one)) in owned)
        self._owners[:] = [*self._host, *in_order]
        after = change.before_step - 1
        group = self.optimizers.group(owner.name, after, arguments.get("warmup_steps"))
        self._rates.adopt(owner.name, owner.optimizer, [group])
        plot.germinated(arguments["number"], after)

    def _remove(self, change: m.ScriptChange) -> None:
        plot = self.plot(json.loads(change.arguments)["slot"])
        name = st.group_of(plot.name)
        self._rates.unregister_optimizer(name)
        (owner,) = (one for one in self._owners if one.name == name)
        self._owners.remove(owner)
        # The parameters are kept for a rollback, and its target has the optimizer's state.
        owner.optimizer.state.clear()
        reached("seed_removed")
        plot.slot.clear()

    def _look_again(self) -> None:
        """The model has another shape: find the slots that hold a module."""
        owned = {owner.name: owner for owner in self._owners[len(self._host) :]}
        for name, plot in self.plots.items():
            plot.owned_by(owned.get(st.group_of(name)))
            if plot.is_frozen:
                # A compaction may have given the seed other buffers.
                plot.slot.freeze(frozen=True)
        self.growing = tuple(plot for plot in self.plots.values() if plot.owner is not None)
        self.prefixes = tuple(plot.prefix for plot in self.growing)
        self.active = bool(self.growing)
        self.attends = self.active or self._is_looking

    def _check(self) -> None:
        """A hook has changed the model. Raises SetupRefused if a slot is gone, has another name, or is new."""
        names = {id(module): name for name, module in self._model.named_modules()}
        for plot in self.plots.values():
            name = names.get(id(plot.slot))
            if name is None or f"{name}.seed.".lstrip(".") != plot.prefix:
                where = "is not in the model any more" if name is None else f"is called {name} now"
                raise SetupRefused(f"the slot {plot.name} {where}; a change of the model must leave slots in place")
        if more := slots_of(self._model).keys() - self.plots.keys():
            raise SetupRefused(
                f"the change adds the slot {', '.join(sorted(more))}, but a run has only the slots of the task's "
                "model. Build the model with it, or name its place in seed_slots(model)"
            )

    # -- where training stands -----------------------------------------------------------------------------------------

    def stand_at(self, step: int, batch: int) -> None:
        """Training stands at a boundary: step `step` is applied, and so many batches of its epoch are trained."""
        for plot in self.growing:
            plot.stand_at(step)
        # Within an epoch the last input is that of a training step, and not of a validation.
        if self._is_looking and batch:
            for plot in self.plots.values():
                plot.take_input()
            self._look_for_inputs()

    def state(self) -> dict[str, Any]:
        """Return the state of every slot, as plain data; empty without slots."""
        return {name: plot.state() for name, plot in self.plots.items()}

    def load(self, state: Mapping[str, Any], step: int) -> None:
        """Continue from what `state` returned, after step `step`. The model has the shape of that state already."""
        for name, plot in self.plots.items():
            plot.load(state.get(name), step)
        self._look_for_inputs()

    def _look_for_inputs(self) -> None:
        """Look for the inputs of slots until each has seen one."""
        self._is_looking = not all(plot.input_dtype for plot in self.plots.values())
        self.attends = self.active or self._is_looking

    def forget_inputs(self) -> None:
        """The model computes with fewer channels from now on: no seed fits before the next step."""
        for plot in self.plots.values():
            plot.forget_input()
        self._look_for_inputs()

    @property
    def blueprints(self) -> tuple[str, ...]:
        """The names of the blueprints that may be ordered: built in, installed and configured. None without slots."""
        return tuple(dict.fromkeys((*blueprint_names(), *self._configured))) if self.plots else ()

    @property
    def modules(self) -> list[nn.Module]:
        """The modules of all seeds, in the order of the slots."""
        return [module for plot in self.growing if (module := plot.slot.seed) is not None]

    def owned_by_seeds(self) -> list[Owner]:
        """Return the owners of the seeds' parameters, in the order of the slots."""
        return self._owners[len(self._host) :]

    def learning(self) -> Iterator[Owner]:
        """Yield the owners whose optimizers update their seeds, in the order of the slots."""
        # Not even an empty step of a frozen one: an optimizer may count its steps.
        return (plot.owner for plot in self.growing if plot.owner is not None and not plot.is_frozen)

    def hold(self) -> None:
        """Put back what frozen seeds must keep. Call it after an update, before any code of the user's."""
        for plot in self.growing:
            if plot.is_frozen:
                plot.slot.hold()

    def is_of_seed(self, name: str) -> bool:
        """Return whether a tensor of this name belongs to a seed."""
        return name.startswith(self.prefixes)

    def hide_gradients(self, call: Callable[[], Any]) -> Any:
        """Call a function that sees the whole model, while the seeds have no gradients. Return what it returns."""
        held = [(parameter, parameter.grad) for plot in self.growing for parameter in plot.parameters]
        for parameter, _ in held:
            parameter.grad = None
        try:
            return call()
        finally:
            for parameter, gradient in held:
                parameter.grad = gradient
