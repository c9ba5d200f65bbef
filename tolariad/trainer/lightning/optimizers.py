"""The result of `configure_optimizers`, and its schedulers as tables of rates.

A scheduler of torch is stepped through the whole run before training, on the module's own optimizer, which is put back
afterwards. So the rates are those that Lightning's trainer would set, to the last bit, and the controller holds them as
it holds all others. Promises: a form, a key or a scheduler that cannot be honoured is refused by its name.
"""

from __future__ import annotations

import warnings
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from tolariad.core.calc.learning_rate.schedule import GroupConfig, LRPolicy, PlateauRule
from tolariad.core.calc.learning_rate.tabulated import STEPS_MAX, Tabulated, factor_refusal, packed
from tolariad.trainer.errors import SetupRefused

_KEYS: Final = ("scheduler", "interval", "frequency", "monitor", "strict", "name", "reduce_on_plateau")
_FORMS: Final = "an optimizer, ([optimizer], [scheduler]), or {'optimizer': ..., 'lr_scheduler': ...}"


class Stepped(NamedTuple):
    """A scheduler, and when it is stepped: every `frequency` batches or epochs."""

    scheduler: Any
    interval: str = "epoch"
    frequency: int = 1
    monitor: str | None = None

    @property
    def name(self) -> str:
        """The class of the scheduler."""
        return type(self.scheduler).__name__


class Configured(NamedTuple):
    """The optimizer of a module, and its schedulers."""

    optimizer: Optimizer
    schedulers: tuple[Stepped, ...]


class Lengths(NamedTuple):
    """The updates of the run and of an epoch, the batches of an epoch, and how many of them are an update.

    `batches`: 0 if the data has no length.
    """

    steps: int
    steps_per_epoch: int
    batches: int
    accumulate: int


class Tables(NamedTuple):
    """For each group its rate at each step, and its momentum (or first beta) if a scheduler changes that; else None."""

    rates: list[list[float]]
    momenta: list[array[float] | None]


def read(found: Any) -> Configured:
    """Read what configure_optimizers returned, in each of Lightning's forms. Raises SetupRefused."""
    optimizers, schedulers, monitor = _parts(found)
    if len(optimizers) != 1:
        raise SetupRefused(
            f"configure_optimizers returns {len(optimizers)} optimizers; with automatic optimization there is one. For "
            "several, write a task with optimizers(model) and training_step(model, batch, run)"
        )
    for one in optimizers:
        if not isinstance(one, Optimizer):
            raise SetupRefused(f"configure_optimizers must return {_FORMS}; it returns a {type(one).__name__}")
    configured = Configured(optimizers[0], tuple(_stepped(one, monitor) for one in schedulers))
    for one in configured.schedulers:
        if getattr(one.scheduler, "optimizer", None) is not configured.optimizer:
            raise SetupRefused(f"configure_optimizers: {one.name} belongs to another optimizer than is returned")
    return configured


def _parts(found: Any) -> tuple[list[Any], list[Any], str | None]:
    """Return optimizers, schedulers, and the metric named beside them."""
    if isinstance(found, Optimizer):
        return [found], [], None
    if isinstance(found, Mapping):
        if unknown := set(found) - {"optimizer", "lr_scheduler", "monitor"}:
            raise SetupRefused(f"configure_optimizers returns the key {_shown(unknown)}, which means nothing there")
        return [found.get("optimizer")], [found["lr_scheduler"]] if "lr_scheduler" in found else [], _monitor(found)
    if isinstance(found, (list, tuple)) and found:
        if len(found) == 2 and isinstance(found[0], list) and all(isinstance(one, Optimizer) for one in found[0]):
            schedulers = found[1] if isinstance(found[1], list) else [found[1]]
            return found[0], schedulers, None
        if all(isinstance(one, Mapping) for one in found):
            return _parts(found[0]) if len(found) == 1 else (list(found), [], None)
        return list(found), [], None
    what = "None: no parameter would change" if found is None else f"a {type(found).__name__}"
    raise SetupRefused(f"configure_optimizers must return {_FORMS}; it returns {what}")


def _monitor(found: Mapping[str, Any]) -> str | None:
    monitor = found.get("monitor")
    return monitor if isinstance(monitor, str) else None


def _stepped(found: Any, monitor: str | None) -> Stepped:
    given = dict(found) if isinstance(found, Mapping) else {"scheduler": found, "monitor": monitor}
    if unknown := set(given) - set(_KEYS):
        raise SetupRefused(f"lr_scheduler has the key {_shown(unknown)}; the keys are {', '.join(_KEYS)}")
    stepped = Stepped(
        given.get("scheduler"), given.get("interval", "epoch"), given.get("frequency", 1), given.get("monitor")
    )
    if not isinstance(stepped.scheduler, LRScheduler | ReduceLROnPlateau):
        raise SetupRefused(f"lr_scheduler: a {stepped.name} is not supported; give one of torch.optim.lr_scheduler")
    if stepped.interval not in {"step", "epoch"}:
        raise SetupRefused(f"lr_scheduler: the interval is {stepped.interval!r}; it must be step or epoch")
    if stepped.frequency < 1:
        raise SetupRefused(f"lr_scheduler: the frequency is {stepped.frequency!r}; it must be a whole number from 1 on")
    if given.get("reduce_on_plateau", False) and not isinstance(stepped.scheduler, ReduceLROnPlateau):
        raise SetupRefused(f"lr_scheduler: reduce_on_plateau is for ReduceLROnPlateau, not for {stepped.name}")
    return stepped


def _shown(keys: set[Any]) -> str:
    return ", ".join(repr(key) for key in sorted(keys, key=str))


def tabulate(configured: Configured, lengths: Lengths) -> Tables:
    """Step the schedulers through the whole run, and put the optimizer back. Raises SetupRefused."""
    optimizer, schedulers = configured
    if lengths.steps > STEPS_MAX:
        raise SetupRefused(f"a scheduler is tabulated for at most {STEPS_MAX} steps, and the run has {lengths.steps}")
    if not lengths.batches and any(one.interval == "epoch" for one in schedulers):
        raise SetupRefused("a scheduler with interval `epoch` needs to know how many batches an epoch has")
    groups = optimizer.param_groups
    before = [{key: value for key, value in group.items() if key != "params"} for group in groups]
    rates: list[list[float]] = [[] for _ in groups]
    momenta = [array("d") for _ in groups]
    with warnings.catch_warnings():
        # Schedulers warn if they are stepped without their optimizer, and torch of some of its own calls.
        warnings.simplefilter("ignore")
        for step in range(1, lengths.steps + 1):
            for at, group in enumerate(groups):
                rates[at].append(float(group["lr"]))
                momenta[at].append(momentum_of(group))
            if step < lengths.steps:
                _advance(schedulers, step, lengths)
    for at, (group, kept) in enumerate(zip(groups, before, strict=True)):
        _refuse_other_changes(group, kept, schedulers)
        group.update(kept)
        if (why := next(filter(None, map(factor_refusal, range(1, len(rates[at]) + 1), rates[at])), None)) is not None:
            raise SetupRefused(f"{_names(schedulers)}: {why}")
    # A scheduler wraps the method: it would warn, and count the updates.
    optimizer.__dict__.pop("step", None)
    return Tables(rates, [one if len(set(one)) > 1 else None for one in momenta])


def _advance(schedulers: Sequence[Stepped], step: int, lengths: Lengths) -> None:
    """Step the schedulers that Lightning's trainer would step after update `step`.

    Schedulers that step by batch are stepped before those that step by epoch.
    """
    epoch, within = divmod(step - 1, lengths.steps_per_epoch)
    # As Lightning does, count the batches of this epoch and not the updates of the run.
    batch = min((within + 1) * lengths.accumulate, lengths.batches or step * lengths.accumulate)
    is_last = within + 1 == lengths.steps_per_epoch
    for interval, number in (("step", batch), *((("epoch", epoch + 1),) if is_last else ())):
        for one in schedulers:
            if one.interval == interval and number % one.frequency == 0:
                try:
                    one.scheduler.step()
                except Exception as error:
                    raise SetupRefused(
                        f"{one.name}.step() raises {type(error).__name__} after step {step} of {lengths.steps}: {error}"
                    ) from error


def _refuse_other_changes(group: dict[str, Any], before: dict[str, Any], schedulers: Sequence[Stepped]) -> None:
    """Raise SetupRefused if a scheduler changes more than the rate and the momentum."""
    for key, was in before.items():
        if key in {"lr", "momentum", "betas"} or isinstance(was, torch.Tensor):
            continue
        if group[key] != was:
            raise SetupRefused(f"{_names(schedulers)} changes {key!r}; only rates and momentum may change in a run")


def momentum_of(group: dict[str, Any]) -> float:
    """Return the group's momentum, or its first beta; 0 if it has neither."""
    return float(group["betas"][0] if "betas" in group else group.get("momentum", 0.0))


def set_momentum(group: dict[str, Any], value: float) -> None:
    """Set what `momentum_of` returns."""
    if "betas" in group:
        group["betas"] = (value, *group["betas"][1:])
    elif "momentum" in group:
        group["momentum"] = value


def _names(schedulers: Sequence[Stepped]) -> str:
    return "+".join(one.name for one in schedulers)


def configs(configured: Configured, tables: Tables, source_hash: str) -> list[GroupConfig]:
    """Return the schedule of each group: its table, or its one rate if that never changes. The names are to be set."""
    source = _names(configured.schedulers)
    return [_config(rates, source, source_hash) for rates in tables.rates]


def _config(rates: list[float], source: str, source_hash: str) -> GroupConfig:
    if min(rates) == max(rates):
        # Without a floor: from one, rounding could miss the rate by a bit.
        return GroupConfig("", LRPolicy.CONSTANT, rates[0], min_lr=0.0)
    table = Tabulated(source=source, hash=source_hash, steps=len(rates), packed=packed(rates), absolute=True)
    return GroupConfig("", LRPolicy.FUNCTION, max(rates), min_lr=0.0, function=table)


def plateau_configs(stepped: Stepped, losses: Sequence[str]) -> list[GroupConfig]:
    """Return the built-in policy that lowers rates as this ReduceLROnPlateau does. `losses`: names of the loss.

    Raises SetupRefused if the policy would do something else.
    """
    found: Any = stepped.scheduler
    wanted = {
        "mode": ("min", found.mode),
        "threshold_mode": ("rel", found.threshold_mode),
        "eps": (1e-8, found.eps),
        "interval": ("epoch", stepped.interval),
        "frequency": (1, stepped.frequency),
    }
    for key, (needed, given) in wanted.items():
        if given != needed:
            raise SetupRefused(
                f"ReduceLROnPlateau with {key}={given!r} is not supported, only with {needed!r}: tolariad's own policy "
                "takes its place. Use a scheduler that depends on the step only"
            )
    if stepped.monitor not in losses:
        raise SetupRefused(
            f"ReduceLROnPlateau monitors {stepped.monitor!r}; it is supported for the loss of the validation only: "
            f"{', '.join(losses)}"
        )
    rule = PlateauRule(factor=found.factor, patience=found.patience, threshold=found.threshold, cooldown=found.cooldown)
    rates = [float(group["lr"]) for group in found.optimizer.param_groups]
    return [
        GroupConfig("", LRPolicy.MORPHO_ADAPTIVE, rate, min_lr=float(least), plateau=rule)
        for rate, least in zip(rates, found.min_lrs, strict=True)
    ]
