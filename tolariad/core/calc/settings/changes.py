"""Which keys of the configuration an existing run may change, and what a start needs for it.

Promises: a key that is free changes no step that the journal holds, except that learning rates may depend on `epochs`.
Every key that is neither free nor in NEVER needs --accept-config.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Mapping
from typing import Final

# Keys that a live daemon may reload. None of them can change a weight, a rate or the order of data.
RELOADABLE: Final = (
    "logging",
    "metrics",
    "telemetry",
    "notify",
    "budgets",
    "control",
    "checkpoint.keep_last",
    "checkpoint.keep",
    "checkpoint.keep_days",
    "checkpoint.importance_days",
    "checkpoint_storage_quota_gb",
)

# Where the training ends. More of it lets a complete run go on; an end that has passed is refused.
END: Final = ("epochs", "stop")

# Keys that a start may change without a flag. They decide when the run ends, when it is saved, how long a checkpoint is
# kept and what is shown. Like a reloadable key, none of them changes a step that the journal holds, except `epochs`:
# the learning rates may depend on it.
FREE: Final = (
    *END,
    "checkpoint",
    "checkpoint_interval_epochs",
    "keep_best",
    "snapshots",
    "rollback.fast_path_enabled",
    "rollback.fast_path_timeout_ms",
    "rollback.full_path_timeout_s",
    "rollback.checkpoint_cache_size",
    "journal",
    "performance",
    "breakers",
    "learning_rate.circuit_breaker_threshold",
    "audit",
    "data",
    "digest",
    "follow",
    "signals",
    "trainer",
    # A re-run validates where the journal has a validation.
    "validate",
    # A stage that has begun is in the journal.
    "stages",
    # Every answer is recorded with the orders that it led to.
    "strategy",
    "integration",
    # Every move is recorded with its numbers, so no step that the journal holds depends on these.
    "seeds.blend_steps",
    "seeds.blueprints",
    "seeds.embargo_epochs",
    "seeds.evaluate",
    "seeds.fossil",
    "seeds.gates",
    "seeds.warmup_epochs",
)

# Keys of which a change may make the loss jump: a start that changes one announces it (docs/detection.md).
_ANNOUNCED: Final = ("accumulate", "learning_rate", "precision", "task", "task_options", "epochs", "stop.steps")

# Keys that no start may change, and why.
NEVER: Final[Mapping[str, str]] = {
    "rng_seed": "every random draw and the order of the data follow from it",
    "parallel": "each rank has its own random numbers, and its own place in its data; exact sums have another order",
    "batch_size": "the place within an epoch is counted in batches",
    "optimizer": "a resume restores the optimizer with its arguments",
    "optimizers": "a resume restores the optimizers with their arguments",
    "seeds.optimizer": "a resume restores the optimizers of seeds with their arguments",
}
# A key of these that a start may change if the run has exact sums: their bits do not depend on it.
RANKS: Final = "parallel.ranks"
# Rates of a part or a group of the optimizer are the controller's. They change as those of `learning_rate` do.
_RATE: Final = re.compile(
    r"optimizer(s\.[^.]+)?(\.groups(\[\d+\])?)?\.(base_lr|policy|warmup_epochs|warmup_steps|min_lr|max_lr)"
)


class Change(enum.Enum):
    """The condition for a start to change a key of an existing run: none, --accept-config, or never."""

    FREE = "free"
    ACCEPT = "accept"
    NEVER = "never"


def is_reloadable(key: str) -> bool:
    """Return whether a live run may reload this dotted key."""
    return is_under(key, RELOADABLE)


@functools.lru_cache(maxsize=4096)
def change_of(key: str) -> Change:
    """Return what a start needs to change this dotted key. "*": nobody knows which keys differ.

    Cached: the hash of a configuration asks it for every key.
    """
    if is_under(key, tuple(NEVER)) and not _RATE.fullmatch(key):
        return Change.NEVER
    return Change.FREE if is_reloadable(key) or is_under(key, FREE) else Change.ACCEPT


def may_change_steps(key: str) -> bool:
    """Return whether steps that are made again may differ if this key has changed: rates depend on the planned end."""
    return change_of(key) is not Change.FREE or key in ("epochs", "stop.steps")


def is_announced(key: str) -> bool:
    """Return whether a change of this dotted key may make the loss jump."""
    return may_change_steps(key) and (is_under(key, _ANNOUNCED) or _RATE.fullmatch(key) is not None)


def why_never(key: str) -> str:
    """Return why no start may change this key, as a clause; "" if one may."""
    is_never = change_of(key) is Change.NEVER
    return next((why for never, why in NEVER.items() if is_never and is_under(key, (never,))), "")


def is_of_end(key: str) -> bool:
    """Return whether this key says where the training ends. "*": nobody knows which keys differ."""
    return key == "*" or is_under(key, END)


def is_under(key: str, prefixes: tuple[str, ...]) -> bool:
    """Return whether the dotted key is one of `prefixes`, or lies in a section that is one of them."""
    return any(key == prefix or key.startswith(f"{prefix}.") for prefix in prefixes)
