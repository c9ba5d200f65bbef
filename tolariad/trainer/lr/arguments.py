"""Convert what callers pass to the controller into the values that it works with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from tolariad.core.calc.learning_rate.group import Group
from tolariad.core.calc.learning_rate.schedule import BY_LENGTH, GroupConfig, LRPolicy
from tolariad.core.calc.settings.model import Settings
from tolariad.core.calc.settings.reading import read_settings

if TYPE_CHECKING:
    from torch.optim import Optimizer

# Source 000's schedule for parameters added during training: a tenth of the rate, warmed up from a hundredth of that.
_NEW: Final = GroupConfig("", LRPolicy.MORPHO_ADAPTIVE, 0.1, warmup_epochs=10, warmup_factor=0.01)


def for_new_parameters(id_: str, parent: Group) -> GroupConfig:
    """Return the configuration of a group that is added during training beside `parent`."""
    return replace(_NEW, name=id_, base_lr=parent.schedule.base_lr * _NEW.base_lr)


def settings_of(config: Settings | Mapping[str, Any]) -> Settings:
    """Return Settings from a mapping, with or without the key `tolaria`. Raises ConfigError."""
    if isinstance(config, Settings):
        return config
    document = config.get("tolaria", config)
    return read_settings(dict(document))


def one_for_each(optimizer: Optimizer, config: GroupConfig | Sequence[GroupConfig]) -> list[GroupConfig]:
    """Return one configuration for each group. A single one serves all, scaled by their present rates to the first."""
    groups = optimizer.param_groups
    if isinstance(config, GroupConfig):
        if len(groups) == 1:
            return [config]
        first = float(groups[0]["lr"])
        ratios = [float(group["lr"]) / first if first else 1.0 for group in groups]
        stem = config.group_id or config.name
        return [
            replace(config, base_lr=config.base_lr * ratio, group_id=f"{stem}_{index}")
            for index, ratio in enumerate(ratios)
        ]
    if len(config) != len(groups):
        raise ValueError(f"{len(config)} configurations for {len(groups)} parameter groups")
    return list(config)


def missing_horizon(config: GroupConfig, steps_per_epoch: int | None, total_steps: int | None) -> Iterator[str]:
    """Yield notes for the user about lengths that the schedule needs and does not know."""
    if steps_per_epoch is None and config.warms_up_by_epochs:
        yield "steps_per_epoch is not known: an epoch of a warm-up counts as one step"
    if total_steps is None and config.policy in BY_LENGTH:
        yield f"total_steps is not known: {config.policy.value} holds its base rate after the warm-up"
