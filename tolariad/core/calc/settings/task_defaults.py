"""The defaults of the built-in tasks. They override the general defaults; an explicit key overrides both.

Promises: plain nested mappings with the same keys as `tolaria:`. They are merged before validation, and so are part of
the resolved configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

Layer = Mapping[str, Any]

# Both tasks take seconds to minutes. A checkpoint at each epoch costs little; with a gap of 30 s most epochs would have
# none. One thread: their layers are too small for more, and the daemon gets a core.
_SMALL: Final = {"torch_threads": 1, "checkpoint_interval_epochs": 1, "checkpoint": {"min_gap_s": 0.0}}

TASK_DEFAULTS: Final[Mapping[str, Layer]] = MappingProxyType(
    {
        "digits": {
            **_SMALL,
            "epochs": 20,
            "batch_size": 64,
            "learning_rate": {"base_lr": 3e-3, "warmup_epochs": 1},
        },
        # The source documents give 3e-4 as the rate for language models.
        "chars": {
            **_SMALL,
            "epochs": 5,
            "batch_size": 32,
            "learning_rate": {"base_lr": 3e-4, "warmup_epochs": 1},
        },
    }
)


# The options of the built-in tasks that have any: each with its values, the default first.
TASK_OPTIONS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = MappingProxyType(
    {"digits": {"model": ("mlp", "cnn")}}
)
# The name in the journal for the task of a program that calls `Tolaria.train` or has a loop of its own.
GIVEN: Final = "given"
# Before the name of a LightningModule: `lightning:./file.py:Module`.
LIGHTNING: Final = "lightning:"
# The rates are those of its configure_optimizers: nothing is laid over them.
_OF_LIGHTNING: Final[Layer] = MappingProxyType({"learning_rate": {"policy": "constant", "warmup_epochs": 0}})


def defaults_of(task: str | None) -> Layer:
    """Return the defaults of a built-in task, or of a LightningModule; empty for any other task."""
    return _OF_LIGHTNING if (task or "").startswith(LIGHTNING) else TASK_DEFAULTS.get(task or "", {})


def layer(under: Layer, over: Layer) -> dict[str, Any]:
    """Return `under` with the values of `over`, merged section by section.

    A list or scalar replaces the other value.
    """
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = layer(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged
