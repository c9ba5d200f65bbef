"""What a run of several ranks cannot do yet, and its settings without what it need not be told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from tolariad.core.calc.settings.model import Settings
from tolariad.core.calc.settings.reading import Problem

# To be logged, after what it holds for.
WITHOUT_FINDINGS: Final = (
    "an order to go back leads all ranks to a checkpoint. Findings are recorded, steps that are not "
    "finite or spike are skipped on all, and nothing else follows yet (docs/ranks.md)"
)


def refused_for_ranks(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the key and the name of what several ranks cannot do yet."""
    if settings.prune.enabled:
        yield "prune.enabled", "prune.enabled"
    if settings.strategy not in (None, "none"):
        yield "strategy", "seeds and strategies (strategy)"
    if settings.compile:
        yield "compile", "compile"
    if settings.stop.tokens is not None:
        yield "stop.tokens", "stop.tokens"
    if (settings.task or "").startswith("lightning:"):
        yield "task", "LightningModules"
    if settings.parallel.exact and settings.precision == "fp16":
        yield "precision", "precision fp16 with exact sums"
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
    """Return the settings of a run of several ranks: findings, snapshots and trials, on by default, are off."""
    return msgspec.structs.replace(
        settings,
        detect=msgspec.structs.replace(settings.detect, rollback=False, trial=False),
        rollback=msgspec.structs.replace(settings.rollback, fast_path_enabled=False),
    )


def with_leaves(settings: Settings) -> Settings:
    """Return the settings of a run with exact sums as those of one process, whose micro-batches are the leaves."""
    leaves = settings.parallel.leaves
    if not settings.parallel.exact or leaves is None:
        return settings
    return msgspec.structs.replace(settings, accumulate=leaves)
