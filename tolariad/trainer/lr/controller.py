"""UnifiedLRController: the only object that changes learning rates (source 000, invariant L1).

Order within a step: the guard compares and writes the rates, the optimizer updates, `step` advances. A loop other than
tolariad's must call `step(epoch, metrics)` after every `optimizer.step()`.

Promises: every update uses the rate of `core.calc.learning_rate`, even if other code wrote another one into the
optimizer. A difference is corrected, reported and counted, and training continues.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain, count
from time import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tolariad.core import messages as m
from tolariad.core.calc.health.breaker import breaker_rule
from tolariad.core.calc.learning_rate.group import Group, after_epoch, metric_of, ordered, rate_of, refusal, with_order
from tolariad.core.calc.learning_rate.schedule import GroupConfig, LRPolicy, curve_length, schedule_of
from tolariad.core.calc.learning_rate.tabulated import Tabulated
from tolariad.core.calc.settings.model import Settings
from tolariad.guards import CircuitBreaker
from tolariad.rate_functions import tabulate
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.lr.arguments import for_new_parameters, missing_horizon, one_for_each, settings_of
from tolariad.trainer.lr.history import History
from tolariad.trainer.lr.integrity import Integrity
from tolariad.trainer.lr.managed import ManagedOptimizer
from tolariad.trainer.lr.state import groups_from, groups_state

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

    from tolariad.trainer.lr.guard import Violation

_log: Final = logging.getLogger(__name__)

# Make a recorded change of the model: its name and its arguments.
Grow = Callable[[str, dict[str, Any]], None]


class Mark(NamedTuple):
    """Every optimizer with its groups, by its name, and how many groups had been added during training."""

    held: dict[str, tuple[Optimizer, tuple[Group, ...]]]
    added: int


class UnifiedLRController(Integrity):
    """Controls the rates of every group of every registered optimizer.

    * `tolaria_config`: Settings, or a mapping as in a configuration file.
    * `enable_runtime_guards`: False (or the configuration's key): rates are still written before every step, but
      nothing is compared, counted or reported.
    * `steps_per_epoch`, `total_steps`: the lengths that schedules need. Without the first, an epoch counts as one step;
      without the second, a decay never begins. A warning in the log says so once.
    * `on_violation`: called for every change by other code.
    """

    def __init__(
        self,
        tolaria_config: Settings | Mapping[str, Any],
        enable_runtime_guards: bool = True,  # noqa: FBT001, FBT002 - source 000's signature
        *,
        steps_per_epoch: int | None = None,
        total_steps: int | None = None,
        on_violation: Callable[[Violation], None] | None = None,
    ) -> None:
        """Raises ConfigError if the mapping is not a valid configuration."""
        self.config = settings_of(tolaria_config)
        rule = breaker_rule(self.config, "lr")
        super().__init__(
            CircuitBreaker(rule.failures, reset_after_s=rule.reset_s, half_open_probes=rule.probes),
            on_violation,
            enable_guards=enable_runtime_guards and self.config.learning_rate.enable_runtime_guards,
        )
        self.global_step = self.current_epoch = 0
        self._loss_sum, self._losses = 0.0, 0
        self._steps_per_epoch, self._total_steps = steps_per_epoch, total_steps
        self._held: dict[str, ManagedOptimizer] = {}
        self._regroup()
        self._added = 0
        self._said: set[str] = set()
        self._grower: Grow | None = None
        self._history = History(self._shapes)
        self._metrics: dict[str, float] = {}

    # -- optimizers and groups -----------------------------------------------------------------------------------------

    def register_optimizer(
        self, name: str, optimizer: Optimizer, config: GroupConfig | Sequence[GroupConfig]
    ) -> tuple[str, ...]:
        """Take control of an optimizer. Return the ids of its groups, in order.

        One GroupConfig serves all groups, which keep the ratio of their present rates to the first; a sequence has one
        for each. A tensor rate is replaced by a number, because code that holds the tensor could change it unseen.
        Raises ValueError if the name, the optimizer or a parameter is already registered, or a schedule is invalid.
        """
        self._refuse_known(name, optimizer)
        configs = one_for_each(optimizer, config)
        schedules = [self._schedule(one) for one in configs]
        ids: list[str] = []
        for one in configs:
            ids.append(_free(one.group_id or one.name, (*self.names, *ids)))
        self.adopt(name, optimizer, [Group(id_, schedule) for id_, schedule in zip(ids, schedules, strict=True)])
        return tuple(ids)

    def adopt(self, name: str, optimizer: Optimizer, groups: Sequence[Group]) -> None:
        """Take control of an optimizer whose groups have these schedules. Raises ValueError as `register_optimizer`."""
        self._refuse_known(name, optimizer)
        self._held[name] = self._managed(optimizer, groups)
        self._regroup()

    def unregister_optimizer(self, name: str) -> None:
        """Release an optimizer. Its rates stay as they are. Raises KeyError, naming the known optimizers."""
        if name not in self._held:
            raise KeyError(f"{name!r} is not registered; there are {', '.join(self._held) or 'none'}")
        held = self._held.pop(name)
        self._regroup()
        held.guard.release()

    def replace_optimizer(self, old: Optimizer, new: Optimizer) -> None:
        """Replace `old` by `new` (or by itself with other parameters). The groups keep ids, schedules and rates.

        Raises ValueError, with nothing changed, if `old` is not registered or the number of groups differs.
        """
        held = next((one for one in self._every if one.guard.optimizer is old), None)
        if held is None or len(new.param_groups) != len(held.groups):
            raise ValueError("the old optimizer is not registered, or the new one has another number of groups")
        held.move(new)

    def add_new_parameters(
        self,
        optimizer: Optimizer,
        new_params: Iterable[torch.nn.Parameter] | Iterable[tuple[str, torch.nn.Parameter]],
        parent_group_name: str | None = None,
    ) -> str:
        """Add parameters that were created during training, as a new group. Return its id.

        The group's policy is MORPHO_ADAPTIVE, at a tenth of the base rate of its parent (default: the first group). It
        warms up over 10 epochs from now, from a hundredth of that rate. It has the parent's other options. Raises
        ValueError for an optimizer that is not registered, KeyError for an unknown parent.
        """
        held = next((one for one in self._every if one.guard.optimizer is optimizer), None)
        if held is None:
            raise ValueError("the optimizer is not registered; call register_optimizer first")
        parent = held.groups[0] if parent_group_name is None else self._group(parent_group_name)[1]
        self._added += 1
        id_ = _free(f"morpho_group_{self._added}", self.names)
        config = for_new_parameters(id_, parent)
        held.add(Group(id_, self._schedule(config)), new_params, like=parent.name, step=self.global_step)
        self._regroup()
        return id_

    def remove_group(self, group_id: str) -> None:
        """Remove a group from its optimizer, with the optimizer's state for its parameters. Raises KeyError."""
        held, _ = self._group(group_id)
        held.remove(group_id, self.global_step)
        self._regroup()

    def grow(self, change: str, /, **arguments: Any) -> None:
        """Change the model's shape by the task's `grow`, and record it: call it in a hook (docs/task.md).

        Raises SetupRefused if this is not a run's controller, or the change cannot be made here and repeated later.
        """
        if self._grower is None:
            raise SetupRefused("grow() records a change in a run's journal; this controller belongs to no run")
        self._grower(change, arguments)

    def grow_by(self, grower: Grow) -> None:
        """Let `grower` make the changes that are asked for."""
        self._grower = grower

    def mark(self) -> Mark:
        """Return what `go_back` needs."""
        return Mark({name: (held.guard.optimizer, held.groups) for name, held in self._held.items()}, self._added)

    def go_back(self, mark: Mark) -> None:
        """Hold the optimizers and groups that there were at `mark`. The optimizers must have these groups already."""
        for name in self._held.keys() - mark.held.keys():
            self._held[name].guard.release()
        before, self._held = self._held, {}
        for name, (optimizer, groups) in mark.held.items():
            if name in before:
                before[name].regroup(groups, self.global_step)
                self._held[name] = before[name]
            else:
                self._held[name] = self._managed(optimizer, groups)
        self._added = mark.added
        self._regroup()

    @property
    def groups(self) -> tuple[Group, ...]:
        """All groups, in the order of their registration."""
        return tuple(group for held in self._every for group in held.groups)

    def names_of(self, name: str) -> tuple[str, ...]:
        """Return the groups of the optimizer with this name, in its order. Raises KeyError."""
        return self._held[name].names

    # -- orders --------------------------------------------------------------------------------------------------------

    def order(self, group_id: str, value: float, policy: LRPolicy | None = None, *, reason: str) -> float:
        """Change a group's rate from the next step on, for an operator or the strategy. Return the rate before.

        The order scales the group's schedule so that the next rate is `value`. `policy` replaces the schedule:
        CONSTANT keeps the value, FROZEN requires 0; FUNCTION is for registered groups only. Raises KeyError for an
        unknown group, ValueError if `core.calc.learning_rate.group.refusal` refuses (one order changes a rate by at
        most the factor `learning_rate.max_order_factor`).
        """
        if policy is LRPolicy.FUNCTION:
            raise ValueError("a function is given by GroupConfig, when the optimizer is registered")
        (_, group), value = self._group(group_id), float(value)  # a number: a tensor could be changed unseen
        step = self.global_step + 1
        why = refusal(group, step, value, policy, self.config.learning_rate.max_order_factor)
        if why is not None:
            raise ValueError(why)
        before = rate_of(group, step)
        self.apply_order(group_id, value, policy, None)
        _log.info("%s: %g -> %g from step %d: %s", group_id, before, value, step, reason)
        return before

    def apply_order(
        self,
        group_id: str,
        value: float,
        policy: LRPolicy | None,
        curve: float | None,
        function: Tabulated | None = None,
    ) -> None:
        """Apply an order that the kernel accepted. `curve`: the recorded scale, if there is one. Raises KeyError."""
        held, group = self._group(group_id)
        if curve is None:
            changed = ordered(group, self.global_step + 1, value, policy, function)
        else:
            changed = with_order(group, value, curve, policy, function)
        held.replace_group(changed, self.global_step)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def step(self, epoch: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """Call after `optimizer.step()`: advance every group. Return the next rates by group id.

        If no optimizer has stepped since the last call (a GradScaler skipped it), nothing advances. A new `epoch` ends
        the one before it. Plateaus then use the newest `val_loss`, else `host_loss`, else `loss` of that epoch.
        """
        last = self.global_step  # of the epoch that may end: the step that was just made is the next one's
        if any(held.guard.stepped for held in self._every):
            self.advance(epoch)
            for held in self._every:
                held.guard.forget_step()
        if epoch > self.current_epoch:
            if self.current_epoch:
                self.end_epoch(self.current_epoch, self._metrics, last)
            self._metrics = {}
            self.current_epoch = epoch
        self._metrics.update(metrics)
        return self.rates()

    def advance(self, epoch: int) -> tuple[float, ...]:
        """Advance to the rates of the next update, and return those that this one used, in the order of `groups`."""
        step = self.global_step = self.global_step + 1
        # This runs in every step. With one optimizer, the usual case, its row is used as it is. Locals are faster.
        only, remember = self._only, self._history.add
        used = only.advance(step) if only is not None else tuple([r for h in self._every for r in h.advance(step)])
        remember((epoch, step, self.names, used, time()))
        return used

    def end_epoch(self, epoch: int, metrics: Mapping[str, float], last: int | None = None) -> None:
        """End an epoch with its step `last` (None: the newest). Plateaus use its metric, or stay without one."""
        self.current_epoch = epoch
        if self._clean_epoch and self.enable_guards:
            self.circuit_breaker.record_success()
        self._clean_epoch, self._loss_sum, self._losses = True, 0.0, 0
        self.judge(metrics, last)

    def judge(self, metrics: Mapping[str, float], last: int | None = None) -> None:
        """Judge plateaus by the metric of a validation or an epoch. `last`: its last step; None: the newest."""
        adaptive = [group for group in self.groups if group.policy is LRPolicy.MORPHO_ADAPTIVE]
        found, step = metric_of(dict(metrics)), self.global_step if last is None else last
        if found is not None:
            for one in adaptive:
                self._group(one.name)[0].replace_group(after_epoch(one, step, found[1]), self.global_step)
        elif adaptive:
            self._say(f"none of val_loss, host_loss, loss is given, so the rate of {adaptive[0].name} stays as it is")

    def saw_loss(self, loss: float) -> None:
        """Add the training loss of an applied step. Their mean is `host_loss`, used if there is no validation."""
        self._loss_sum += loss
        self._losses += 1

    @property
    def host_metrics(self) -> dict[str, float]:
        """The mean loss of this epoch's steps so far, as `host_loss`."""
        return {"host_loss": self._loss_sum / self._losses} if self._losses else {}

    @property
    def standing(self) -> m.Standing:
        """The facts that the kernel needs about the rates of a restored state."""
        return m.Standing(groups=self.groups, losses=self._losses, loss_sum=self._loss_sum)

    def rates(self) -> dict[str, float]:
        """The rates of the next update, by group id."""
        return {id_: rate for held in self._every for id_, rate in zip(held.guard.ids, held.guard.row, strict=True)}

    @property
    def row(self) -> tuple[float, ...]:
        """The same as a tuple, in the order of `groups`."""
        only = self._only
        return tuple(rate for held in self._every for rate in held.guard.row) if only is None else only.guard.row

    def digest(self, step: int, row: tuple[float, ...]) -> int:
        """Return the digest of the rates that update `step` used; `row` is the value of the property before it."""
        return self._every[0].digest(step, row)

    @property
    def lr_history(self) -> History:
        """The last 1 000 steps. Each LRSnapshot has the rates that its step used."""
        return self._history

    def watch_next_update(self, optimizer: Optimizer | None, watch: Callable[[tuple[float, ...]], None]) -> None:
        """Call `watch` with the rates before this optimizer's next update, after every hook. None: call it no more."""
        for held in self._every:
            held.guard.watch_next_update(watch if held.guard.optimizer is optimizer else None)

    # -- state ---------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the schedules and the changes by orders and plateaus, as plain data."""
        return {
            "step": self.global_step,
            "epoch": self.current_epoch,
            "loss": [self._loss_sum, self._losses],
            "groups": groups_state(self.groups),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state. Groups with the same ids get their orders and plateaus back."""
        self.global_step, self.current_epoch = state["step"], state["epoch"]
        self._loss_sum, self._losses = state["loss"]
        for held in self._every:
            held.load(groups_from(held.groups, state["groups"]), self.global_step)

    def restored(self, state: Mapping[str, Any] | None, step: int, epoch: int) -> None:
        """Restore groups and rates after a checkpoint was loaded. `state` None: it is older than this field."""
        fresh = {"step": step, "epoch": epoch, "loss": [0.0, 0], "groups": {}}
        for held in self._every:
            held.guard.put_back()
        self.load_state_dict(state or fresh)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _regroup(self) -> None:
        self._every = tuple(self._held.values())
        self._only = self._every[0] if len(self._every) == 1 else None
        self.names = tuple(name for held in self._every for name in held.names)

    def _refuse_known(self, name: str, optimizer: Optimizer) -> None:
        if name in self._held:
            raise ValueError(f"an optimizer {name!r} is registered already")
        if self._has_any_of(optimizer):
            raise ValueError(f"optimizer {name!r} holds a parameter that a registered one holds too")

    def _managed(self, optimizer: Optimizer, groups: Sequence[Group]) -> ManagedOptimizer:
        return ManagedOptimizer(optimizer, groups, self.global_step, self._tell, compares=self.enable_guards)

    def _schedule(self, config: GroupConfig) -> Any:
        for note in missing_horizon(config, self._steps_per_epoch, self._total_steps):
            self._say(note)
        function, length = config.function or None, curve_length(self._total_steps, self.global_step)
        return schedule_of(
            config,
            steps_per_epoch=self._steps_per_epoch or 1,
            total_steps=self._total_steps,
            start=self.global_step,
            function=tabulate(function, length) if isinstance(function, str) else function,
        )

    def _say(self, note: str) -> None:
        """Say it in the log, once."""
        if note not in self._said:
            self._said.add(note)
            _log.warning("learning rate: %s", note)

    def _group(self, group_id: str) -> tuple[ManagedOptimizer, Group]:
        for found in ((held, group) for held in self._every for group in held.groups if group.name == group_id):
            return found
        known = ", ".join(group.name for group in self.groups)
        raise KeyError(f"there is no group {group_id!r}; there are {known or 'none'}")

    def _shapes(self, id_: str) -> list[tuple[int, ...]]:
        return [tuple(parameter.shape) for held in self._every for parameter in held.parameters_of(id_)]


def _free(stem: str, taken: Collection[str]) -> str:
    """Return `stem`, or the first of stem_2, stem_3, … that is not taken."""
    return next(one for one in chain((stem,), map(f"{stem}_{{}}".format, count(2))) if one not in taken)
