"""Make the rate controller of a configured run: names, policies and rates from the configuration."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import asdict, replace

from tolariad.core.calc.learning_rate.group import packed_length
from tolariad.core.calc.learning_rate.schedule import (
    BY_LENGTH,
    CurveRule,
    GroupConfig,
    LRPolicy,
    PlateauRule,
    policy_named,
)
from tolariad.core.calc.learning_rate.tabulated import PACKED_MAX
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.lr.controller import UnifiedLRController
from tolariad.trainer.process.released import at_end

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tolariad.core.calc.settings.model import Settings
    from tolariad.core.calc.settings.optimization import LearningRate, OptimizerGroup
    from tolariad.trainer.optim.configured import Groups

REST: Final = "default"
NO_LENGTH: Final = (
    "the data does not tell how many batches an epoch has, and {} computed from that. Give the loader a __len__, set "
    "stop.steps, count a warm-up in steps (learning_rate.warmup_steps), or train at constant rates: learning_rate: "
    "{{policy: constant, warmup_epochs: 0}}"
)
_log: Final = logging.getLogger(__name__)


class Horizon(NamedTuple):
    """The lengths that schedules are computed for: updates an epoch and in the run. `note` is for the user.

    None: only the end of the data tells.
    """

    steps_per_epoch: int | None
    total_steps: int | None
    note: str = ""


def horizon(steps_per_epoch: int | None, settings: Settings) -> Horizon:
    """Return the horizon from the data's length. Without one, divide `stop.steps` into `epochs` equal epochs."""
    if steps_per_epoch is not None:
        return Horizon(steps_per_epoch, settings.epochs * steps_per_epoch)
    total = settings.stop.steps
    if total is None:
        return Horizon(None, None, "the data has no length: an epoch ends where the data ends")
    share = -(-total // settings.epochs)
    note = (
        f"the data has no length: schedules are computed for {total} steps (stop.steps), in {settings.epochs} epochs "
        f"of {share} steps"
    )
    return Horizon(share, total, note)


def controller_for(
    owned: Mapping[str, Groups],
    settings: Settings,
    drawn_for: Horizon,
    schedules: Callable[[Horizon], Sequence[GroupConfig]] | None = None,
) -> UnifiedLRController:
    """Return the controller of the run's optimizers, by owner.

    Raises SetupRefused for an invalid schedule, or one of unknown length.

    Groups have the rates of the configuration. If the task made the optimizers, the rates keep the ratio that the task
    gave them to the first owner's first group. `schedules` gives the groups of the only optimizer schedules of its own.
    """
    first = float(next(iter(owned.values())).optimizer.param_groups[0]["lr"])
    if schedules is None:
        _warn_of_other_rate(owned, settings, first)
    controller = UnifiedLRController(
        settings, steps_per_epoch=drawn_for.steps_per_epoch, total_steps=drawn_for.total_steps
    )
    at_end(controller.release)
    try:
        for owner, groups in owned.items():
            prefix = owner if len(owned) > 1 else ""
            configs = _configs(groups, settings, first, prefix)
            if schedules is not None:
                own = zip(configs, schedules(drawn_for), strict=True)
                configs = [replace(one, name=config.name) for config, one in own]
            if drawn_for.total_steps is None:
                _refuse_without_length(configs)
            controller.register_optimizer(owner, groups.optimizer, configs)
    except ValueError as error:
        raise SetupRefused(f"learning_rate: {error}") from error
    characters = sum(map(packed_length, controller.groups))
    if characters > PACKED_MAX:
        raise SetupRefused(
            f"learning_rate: the tables of the groups' functions have {characters} characters together, and at most "
            f"{PACKED_MAX} fit into the state of the run. Use fewer groups with a function"
        )
    return controller


def _refuse_without_length(configs: Sequence[GroupConfig]) -> None:
    """Raise SetupRefused if a schedule needs the length of an epoch or of the run. A constant rate needs neither."""
    for config in configs:
        if config.policy in BY_LENGTH or config.policy is LRPolicy.STEP:
            raise SetupRefused(NO_LENGTH.format(f"learning_rate.policy {config.policy.value} is"))
        if config.warms_up_by_epochs:
            raise SetupRefused(NO_LENGTH.format(f"a warm-up is (learning_rate.warmup_epochs {config.warmup_epochs})"))


def _warn_of_other_rate(owned: Mapping[str, Groups], settings: Settings, first: float) -> None:
    """Warn if the task made its optimizer with another rate than the one it will get."""
    groups, base = next(iter(owned.values())), settings.learning_rate.base_lr
    if groups.rates is None and groups.origins[0] is None and first != base:
        _log.warning(
            "The task's optimizer has the learning rate %g, but learning_rate.base_lr is %g and is used. "
            "To train at the optimizer's rate, set base_lr to %g.%s",
            *(first, base, first),
            " All other groups keep their ratio to it." if len(owned) > 1 or len(groups.origins) > 1 else "",
        )


def _configs(groups: Groups, settings: Settings, first: float, owner: str) -> list[GroupConfig]:
    """Use a group's own rate, else the general one. If the task made the optimizer, scale it by its ratio to `first`.

    `first`: the rate of the run's first group. `owner`: empty if there is only one.
    """
    general = groups.rates or settings.learning_rate
    alone = groups.origins.count(None) == 1
    configs = []
    for index, (origin, group) in enumerate(zip(groups.origins, groups.optimizer.param_groups, strict=True)):
        name = _name(origin, group.get("name"), index, owner, alone=alone)
        base, own = general.base_lr, float(group["lr"])
        if first and groups.rates is None:
            base = own if base == first else base * (own / first)
        scaled = replace(general, base_lr=base)
        configs.append(_config(name, scaled, origin))
    return configs


def _name(origin: OptimizerGroup | None, given: object, index: int, owner: str, *, alone: bool) -> str:
    """Return a configured group's name or pattern, else the `name` that the task gave the group, else a number.

    If there are several owners, the owner's name stands before it, or alone.
    """
    own = given if isinstance(given, str) else ""
    if origin is not None:
        own = origin.name or origin.match
    elif alone and (owner or not own):
        return owner or REST
    own = own or f"group_{index}"
    return f"{owner}.{own}" if owner else own


def _config(name: str, general: LearningRate, origin: OptimizerGroup | None) -> GroupConfig:
    """Return the configuration of a group: each field from `origin` if that sets it, else from `general`."""
    values = {field: value for field, value in asdict(general).items() if field in GroupConfig.__struct_fields__}
    given = asdict(origin) if origin is not None else {}
    values |= {field: given[field] for field in values if given.get(field) is not None}
    if given.get("warmup_epochs") is not None and given.get("warmup_steps") is None:
        values["warmup_steps"] = None
    plateau = PlateauRule(**{field: getattr(general, f"plateau_{field}") for field in PlateauRule.__struct_fields__})
    rule = CurveRule(**{field: getattr(general, field) for field in CurveRule.__struct_fields__})
    policy = policy_named(values["policy"])
    function = values["policy"] if policy is LRPolicy.FUNCTION else ""
    own = {"name": name, "policy": policy, "plateau": plateau, "rule": rule, "function": function}
    return GroupConfig(**{**values, **own})
