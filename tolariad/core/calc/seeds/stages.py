"""The stages of a seed, the legal moves between them, and the weight of each stage.

Promises: names and numbers are those of Leyline's SeedLifecycleStage; a test compares them. A number that is no stage
has no legal move and weight 0.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final


class Stage(enum.IntEnum):
    """The stage of a slot's seed. The numbers are a wire contract: never reuse one."""

    UNKNOWN = 0
    DORMANT = 1
    GERMINATED = 2
    TRAINING = 3
    BLENDING = 4
    SHADOWING = 5
    PROBATIONARY = 6
    FOSSILIZED = 7
    CULLED = 8
    EMBARGOED = 9
    RESETTING = 10
    TERMINATED = 11


class Learning(enum.Enum):
    """Whether a seed's optimizer updates it. A frozen seed takes part in the computation, and no bit of it moves."""

    TRAIN = "train"
    FROZEN = "frozen"


# The stages that a seed may move to, by its stage. Source: archived kasmina/lifecycle.py (fact sheet A.8).
MOVES: Final[Mapping[Stage, frozenset[Stage]]] = MappingProxyType(
    {
        Stage.UNKNOWN: frozenset({Stage.DORMANT}),
        Stage.DORMANT: frozenset({Stage.GERMINATED, Stage.TERMINATED}),
        Stage.GERMINATED: frozenset({Stage.TRAINING, Stage.CULLED}),
        Stage.TRAINING: frozenset({Stage.BLENDING, Stage.CULLED}),
        Stage.BLENDING: frozenset({Stage.SHADOWING, Stage.CULLED}),
        Stage.SHADOWING: frozenset({Stage.PROBATIONARY, Stage.CULLED}),
        Stage.PROBATIONARY: frozenset({Stage.FOSSILIZED, Stage.CULLED}),
        Stage.FOSSILIZED: frozenset({Stage.TERMINATED}),
        Stage.CULLED: frozenset({Stage.EMBARGOED}),
        Stage.EMBARGOED: frozenset({Stage.RESETTING}),
        Stage.RESETTING: frozenset({Stage.DORMANT}),
        Stage.TERMINATED: frozenset(),
    }
)
# The stages that `advance` goes through, in order.
GROWTH: Final = (
    Stage.GERMINATED,
    Stage.TRAINING,
    Stage.BLENDING,
    Stage.SHADOWING,
    Stage.PROBATIONARY,
    Stage.FOSSILIZED,
)
# The stages in which the slot holds a module.
PLANTED: Final = frozenset(GROWTH)
# The stages in which the seed can be culled.
CULLABLE: Final = frozenset(stage for stage, moves in MOVES.items() if Stage.CULLED in moves)
# The weight of an auxiliary loss of a seed. BLENDING: times alpha.
WEIGHTS: Final[Mapping[Stage, float]] = MappingProxyType(
    {
        **dict.fromkeys(Stage, 0.0),
        Stage.GERMINATED: 0.01,
        Stage.TRAINING: 0.1,
        Stage.BLENDING: 1.0,
        Stage.SHADOWING: 0.5,
    }
)


def is_legal(stage: int, to: int) -> bool:
    """Return whether a seed may move from `stage` to `to`."""
    return to in MOVES.get(stage, frozenset())  # type: ignore[call-overload]  # any number may be asked about


def next_of(stage: Stage) -> Stage | None:
    """Return the stage that `advance` moves to, or None if the seed cannot advance."""
    at = GROWTH.index(stage) + 1 if stage in GROWTH else len(GROWTH)
    return GROWTH[at] if at < len(GROWTH) else None


def weight_of(stage: int, alpha: float) -> float:
    """Return the weight of an auxiliary loss of a seed in this stage: 0 for a number that is no stage.

    `alpha`: the share of the seed in the slot's output, used in BLENDING only.
    """
    weight: float = WEIGHTS.get(stage, 0.0)  # type: ignore[call-overload]  # any number may be asked about
    return alpha * weight if stage == Stage.BLENDING else weight
