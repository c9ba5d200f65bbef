"""What the built-in tasks prefer over the general defaults; an explicit key wins over both.

Promises: plain nested mappings of the same keys as `tolaria:`, so they are layered before anything is validated and
show up in the resolved configuration. It must not know: what the tasks compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

Layer = Mapping[str, Any]

# Both tasks fit in seconds to minutes, so a checkpoint an epoch costs nothing and the 30 s between two would mean that
# most epochs have none. One thread: their layers are too small to share, and it leaves the daemon a core.
_SMALL: Final = {"torch_threads": 1, "checkpoint_interval_epochs": 1, "checkpoint": {"min_gap_s": 0.0}}

TASK_DEFAULTS: Final[Mapping[str, Layer]] = MappingProxyType(
    {
        "digits": {
            **_SMALL,
            "epochs": 20,
            "batch_size": 64,
            "learning_rate": {"base_lr": 3e-3, "warmup_epochs": 1},
        },
        # 3e-4 is the rate the source names for language models.
        "chars": {
            **_SMALL,
            "epochs": 5,
            "batch_size": 32,
            "learning_rate": {"base_lr": 3e-4, "warmup_epochs": 1},
        },
    }
)


# What `task_options` of a built-in task may hold: each option with its values, the first of them its default.
TASK_OPTIONS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = MappingProxyType(
    {"digits": {"model": ("mlp", "cnn")}, "chars": {}}
)


def defaults_of(task: str | None) -> Layer:
    """Return the layer of a built-in task; an own task has none."""
    return TASK_DEFAULTS.get(task or "", {})


def layer(under: Layer, over: Layer) -> dict[str, Any]:
    """Return `over` laid on `under`, section by section; a list or a scalar replaces what lies below it."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = layer(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged
