"""The masks of a run: applied, held after every update, released, and at last removed by a compaction.

A compaction is a change of the architecture ledger (`prune.compact`), which this module makes. Masks change no shape:
they are a part of the state. docs/pruning.md describes both.

Promises: a masked weight is exactly 0 after every update. Masks are applied whole or not at all, and so is everything
else here: a PruningRefused has changed nothing. A run without masks pays one comparison in each step.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tolariad.core.calc.pruning.ledger import COMPACT
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.pruning.compaction import compact
from tolariad.trainer.pruning.masks import HeldMasks, apply_masks, release_masks, widen_masks
from tolariad.trainer.pruning.plan import Plan, joined, read_plan, structure_of, widened
from tolariad.trainer.pruning.units import PruningRefused
from tolariad.trainer.pruning.watch import StepTimes, Window, WindowWatch

if TYPE_CHECKING:
    from tolariad.core import messages as m
    from tolariad.core.calc.settings.pruning import Prune
    from tolariad.trainer.architecture import Ledger
    from tolariad.trainer.checkpoints.lanes import Copy
    from tolariad.trainer.health.monitor import Monitor
    from tolariad.trainer.lr import UnifiedLRController
    from tolariad.trainer.optim.average import Average
    from tolariad.trainer.optim.owners import Owner
    from tolariad.trainer.seeds.garden import Garden


class MaskedCycle(NamedTuple):
    """The masks of one cycle that are in force."""

    cycle: int
    plan: Plan


class Covered(NamedTuple):
    """How many numbers of the model masks cover, and how many of these no older mask covers."""

    numbers: int
    fresh: int


class _Standing(NamedTuple):
    """Everything that a pruner holds besides the model."""

    masked: tuple[MaskedCycle, ...]
    displaced: dict[str, torch.Tensor]
    window: Window | None


class Pruner:
    """The masks of one built run.

    * `active`: whether units are masked.
    * `watches`: whether `saw` must be called in every step.
    * `masked`: the masks in force, the oldest first.
    * `displaced`: the numbers that the newest of them set to 0.
    """

    def __init__(
        self,
        ledger: Ledger,
        owners: list[Owner],
        rates: UnifiedLRController,
        average: Average | None,
        *,
        monitor: Monitor,
        garden: Garden,
        prune: Prune,
    ) -> None:
        """`owners`: the run's, at this point those of the host."""
        self._model, self._owners, self._rates, self._average = ledger.model, owners, rates, average
        self._monitor, self._garden, self._prune, self._device = monitor, garden, prune, ledger.device
        self._hosts = len(owners)
        self.masked: tuple[MaskedCycle, ...] = ()
        self.displaced: dict[str, torch.Tensor] = {}
        self.window: Window | None = None
        self._held: HeldMasks | None = None
        self._watch: WindowWatch | None = None
        self._due: m.PruneWatchReport | None = None
        self._times = StepTimes(prune.safety.window_steps)
        # On the CPU a step computes in this thread. If another program has the core, the masks are not the reason.
        self._clock = time.thread_time if ledger.device.type == "cpu" else time.perf_counter
        self.active = False
        self.watches = prune.enabled
        ledger.make_by({COMPACT: self._compact}, self._follow)
        ledger.notify(self._look_again)

    # -- in every step, if `active` ------------------------------------------------------------------------------------

    def zero_gradients(self) -> None:
        """Set the gradients of masked coordinates to 0. Call it after the backward pass, before anything reads them."""
        if self._held is not None:
            self._held.zero_gradients()

    def hold(self) -> None:
        """Set masked weights to 0. Call it after every update."""
        if self._held is not None:
            self._held.hold()

    def hold_copy(self, name: str, tensor: torch.Tensor) -> None:
        """Set a copy of the parameter `name` to 0 where that is masked."""
        if self._held is not None:
            self._held.hold_copy(name, tensor)

    # -- orders --------------------------------------------------------------------------------------------------------

    def mask(self, order: m.MaskUnits, before_step: int) -> Covered:
        """Apply the masks of an order. Return how many numbers of the model they cover. Raises PruningRefused."""
        plan = self.fitting(order)
        former = joined([one.plan for one in self.masked], self._model).masks.count
        held = apply_masks(self._model, plan.masks, self._owners, self._average)
        self.masked = (*self.masked, MaskedCycle(order.cycle, plan))
        self.displaced = held.displaced
        norm_before = self._monitor.typical_norm
        self.window = Window(order.cycle, before_step, order.grace_steps, order.window_steps, norm_before)
        self._begin_window(step_s_before=self._times.median)
        self._monitor.learn_norms_anew()
        self._look_again()
        together = joined([one.plan for one in self.masked], self._model).masks.count
        return Covered(plan.masks.count, together - former)

    def release(self, cycle: int) -> int:
        """Lift the masks of a cycle. Return how many numbers of the model they covered. Raises PruningRefused.

        The weights get the numbers that they had. Only the newest masks can be lifted: those of others are not kept.
        """
        if not self.masked or self.masked[-1].cycle != cycle:
            known = ", ".join(str(one.cycle) for one in self.masked) or "none"
            raise PruningRefused(f"cycle {cycle} has not the newest masks, which alone can be lifted; masked: {known}")
        masks = self.masked[-1].plan.masks
        release_masks(self._model, HeldMasks(self._model, masks, self.displaced), self._owners, self._average)
        self._stand(_Standing(self.masked[:-1], {}, None))
        self._monitor.begin_anew()
        return masks.count

    def plan_of_all(self) -> Plan:
        """Return the plan of all masked units. Raises PruningRefused if there are none."""
        if not self.masked:
            raise PruningRefused("no unit is masked, so there is nothing to remove")
        return joined([one.plan for one in self.masked], self._model)

    def fitting(self, order: m.MaskUnits) -> Plan:
        """Return the plan of an order, compared with the model as it is. Raises PruningRefused."""
        plan = read_plan(order.plan)
        if plan.units != order.units:
            raise PruningRefused("its plan is of other units than those that it names")
        if plan.masks.sha256 != order.sha256:  # safety: masks-have-ordered-hash
            raise PruningRefused(f"the masks of its units have SHA-256 {plan.masks.sha256}, not {order.sha256}")
        if plan.structure != structure_of(self._model):  # safety: masks-fit-analysed-shape
            raise PruningRefused("the model has changed its shape since it was analysed")
        for one in self.masked:
            for name, units in plan.units.items():
                if again := sorted(set(units).intersection(one.plan.units.get(name, ()))):
                    raise PruningRefused(f"unit {again[0]} of {name} is masked already, by cycle {one.cycle}")
        seeds = {plot.prefix: name for name, plot in self._garden.plots.items() if not plot.is_permanent}
        for prefix, name in seeds.items():
            if touched := next((path for path in plan.gone.parameters if path.startswith(prefix)), ""):
                raise PruningRefused(f"{touched} belongs to the seed in slot {name}, which is not fossilised")
        HeldMasks(self._model, joined([*(one.plan for one in self.masked), plan], self._model).masks)
        return plan

    # -- the safety window ---------------------------------------------------------------------------------------------

    def saw(self, step: int, norm: float, *, rerunning: bool) -> None:
        """Take in a step that was made. The time of a step in a re-run does not count."""
        seconds = self._times.since_last(self._clock())
        if rerunning:
            seconds = None
        if self._watch is not None and not self._watch.is_over:
            self._due = self._watch.saw(step, norm, seconds)
        elif seconds is not None:
            self._times.add(seconds)

    def due(self) -> m.PruneWatchReport | None:
        """Return the report of the window if it is due, once.

        A re-run may find it too: the trainer may have died between a step and the report that followed it.
        """
        due, self._due = self._due, None
        return due

    def _begin_window(self, step_s_before: float | None = None) -> None:
        """Measure the window from here on. Until its end the detector skips no step for its numbers alone."""
        self._times.stop()
        self._watch = self._due = None
        if self.window is not None:
            self._watch = WindowWatch(self.window, self._prune.safety, self._device, step_s_before=step_s_before)
        self._monitor.tolerate_until(0 if self.window is None else self.window.last)
        self.watches = self._prune.enabled or self._watch is not None

    # -- changes of the model's shape ----------------------------------------------------------------------------------

    def _compact(self, change: m.ScriptChange) -> None:
        """Make the change: remove units from the model. Their values need not be 0: a restart fills them in later."""
        try:
            plan = read_plan(change.arguments)
            if plan.structure != structure_of(self._model):
                raise PruningRefused("the parameters of the model have other names or shapes than they had then")
            compact(self._model, plan, self._owners, rates=self._rates, average=self._average, hosts=self._hosts)
        except PruningRefused as refused:
            raise SetupRefused(str(refused)) from refused
        self._garden.forget_inputs()
        self._stand(_Standing((), {}, None))

    def _follow(self) -> None:
        """A hook has changed the model: masks stay on the units that they cover. Raises SetupRefused if they cannot."""
        if not self.masked:
            return
        try:
            plans = [widened(one.plan, self._model) for one in self.masked]
        except PruningRefused as refused:
            raise SetupRefused(
                f"{refused}; units are masked, so a change of the model may only append to what is masked"
            ) from refused
        everything = joined(plans, self._model).masks
        self.displaced = widen_masks(
            self._model, plans[-1].masks, everything, self.displaced, owners=self._owners, average=self._average
        )
        self.masked = tuple(MaskedCycle(one.cycle, plan) for one, plan in zip(self.masked, plans, strict=True))

    def _look_again(self) -> None:
        """The model's parameters may be other objects: find the masked ones."""
        self._held = None
        if self.masked:
            # Refused on the way to a state of another shape, whose masks are loaded next.
            with suppress(PruningRefused):
                self._held = HeldMasks(self._model, joined([one.plan for one in self.masked], self._model).masks)
        self.active = self._held is not None

    # -- the state -----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the masks in force as plain data; empty if there are none. `displaced` is apart: it has tensors."""
        if not self.masked:
            return {}
        window = None if self.window is None else list(self.window)
        return {"masked": [[one.cycle, one.plan.text] for one in self.masked], "window": window}

    def check(self, state: dict[str, Any]) -> None:
        """Raise PruningRefused if the masks of a state do not fit the model, which has that state's shape."""
        plans = [read_plan(text) for _, text in state.get("masked", ())]
        for plan in plans:
            # Together they have the shapes of the model; each has those that it was made for.
            HeldMasks(self._model, plan.masks)
        if plans:
            HeldMasks(self._model, joined(plans, self._model).masks)

    def load(self, state: dict[str, Any], displaced: dict[str, torch.Tensor], step: int, copy: Copy) -> None:
        """Continue after step `step` from what `state` returned, and from copies of `displaced`, which `copy` fills."""
        window = state.get("window")
        kept = {name: torch.empty_like(tensor, device=self._device) for name, tensor in displaced.items()}
        copy([(kept[name], tensor) for name, tensor in displaced.items()])
        masked = tuple(MaskedCycle(cycle, read_plan(text)) for cycle, text in state.get("masked", ()))
        self._stand(_Standing(masked, kept, None if window is None else Window(*window)))
        if self.window is not None and step >= self.window.last:
            # Its report is older than this state.
            self._watch = None

    def mark(self) -> _Standing:
        """Return what `go_back` needs."""
        return _Standing(self.masked, self.displaced, self.window)

    def go_back(self, mark: _Standing) -> None:
        """Have the masks of a mark again. The model has its shape of then."""
        self._stand(mark)

    def _stand(self, standing: _Standing) -> None:
        self.masked, self.displaced, self.window = standing
        self._begin_window()
        self._look_again()
