"""Sentences before a run about settings of seeds that contradict each other.

Promises: pure functions of settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tolariad.core.calc.seeds.stages import Learning, Stage
from tolariad.core.calc.settings.model import Settings

_KEYS: Final = {Stage.PROBATIONARY: "evaluate", Stage.FOSSILIZED: "fossil"}


def seed_notes(settings: Settings) -> Iterator[str]:
    """Yield a sentence for each stage whose losses have a weight, although a seed in it does not learn."""
    for stage, key in _KEYS.items():
        is_frozen = getattr(settings.seeds, key) == Learning.FROZEN.value
        if is_frozen and settings.seeds.stage_weights.get(stage.name):
            yield (
                f"seeds.stage_weights has a weight for {stage.name}, but a seed in that stage is frozen; "
                f"`seeds.{key}: train` lets it learn"
            )
