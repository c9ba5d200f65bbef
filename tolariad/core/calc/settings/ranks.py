"""What a run of several ranks cannot do yet, and its settings without what it need not be told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from tolariad.core.calc.settings.model import Settings
from tolariad.core.calc.settings.reading import Problem
from tolariad.core.calc.settings.task_defaults import GIVEN, LIGHTNING

# To be logged, after what it holds for.
ON_DISK: Final = (
    "every rollback leads all ranks to a checkpoint on disk. No state is kept in memory "
    "(rollback.fast_path_enabled) (docs/ranks.md)"
)


def refused_for_ranks(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the key and the name of what several ranks cannot do yet."""
    if settings.prune.enabled:
        yield "prune.enabled", "prune.enabled"
    if settings.strategy not in (None, "none"):
        yield "strategy", "seeds and strategies (strategy)"
    if settings.compile:
        yield "compile", "compile"
    # Exact sums have the metrics of all leaves on every rank, and so the tokens.
    if settings.stop.tokens is not None and not settings.parallel.exact:
        yield "stop.tokens", "stop.tokens"
    if settings.parallel.exact and settings.precision == "fp16":
        yield "precision", "precision fp16 with exact sums"
    if settings.parallel.exact and (settings.task or "").startswith(LIGHTNING):
        yield "task", "a LightningModule with exact sums"
    if b'"policy":"morpho_adaptive"' in msgspec.json.encode(settings):
        yield "learning_rate.policy", "the policy morpho_adaptive, which follows the validation of one rank"


def rank_problems(settings: Settings) -> Iterator[Problem]:
    """Yield a problem for each of these, if several ranks are to train."""
    if settings.parallel.ranks == 1 and not settings.parallel.exact:
        return
    who = "several ranks" if settings.parallel.ranks > 1 else "exact sums (parallel.exact)"
    for key, name in refused_for_ranks(settings):
        yield Problem(path=key, what=f"{who} cannot do this yet: {name} (docs/ranks.md)")


def for_ranks(settings: Settings) -> Settings:
    """Return the settings of a run of several ranks: snapshots in memory, on by default, are off."""
    rollback = msgspec.structs.replace(settings.rollback, fast_path_enabled=False)
    return msgspec.structs.replace(settings, rollback=rollback)


def batches_of_step(settings: Settings) -> int:
    """Return how many batches of an epoch's list a step takes: of a task those of all ranks."""
    # A program's loader is a rank's own, so each rank counts its own batches. Exact sums count leaves of all ranks.
    shares = settings.task != GIVEN and not settings.parallel.exact
    return settings.accumulate * (settings.parallel.ranks if shares else 1)


def with_leaves(settings: Settings) -> Settings:
    """Return the settings of a run with exact sums as those of one process, whose micro-batches are the leaves."""
    leaves = settings.parallel.leaves
    if not settings.parallel.exact or leaves is None:
        return settings
    return msgspec.structs.replace(settings, accumulate=leaves)
