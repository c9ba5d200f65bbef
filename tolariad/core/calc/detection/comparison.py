"""Compare two states of a run on the same batches, without training: the present one and the pinned one.

Losses alone do not tell a network that a fault has damaged from an objective that has changed. Two forward passes do:

| on held-out batches the present weights have lost | on the newest batches | judgement |
|---|---|---|
| `HARMED` of the way or more | as much, and the pinned weights lose the usual | WEIGHTS: the weights were damaged |
| `DESTROYED` of the way or more | less: the pinned weights do no better | DATA: these batches damage them |
| less than that | nothing: they have learnt since | CHANGED: the objective or the data changed |
| less than `HEALED` of the way | less than `HARMED` | CHANGED, unless both losses are several times the pinned ones |
| less than `SOUND` of the way | not measured | CHANGED |
| not measured | they have learnt, by more than the noise | CHANGED |
| anything else, or nothing was measured | | UNCLEAR |

The *way* is the distance from the pinned weights' loss to that of an untrained network. Promises: pure functions; a
loss that is not finite counts as lost.
"""

import math
from enum import Enum
from typing import Final

from msgspec import Struct

from tolariad.core.calc.noise import ERRORS

# Shares of the way (docs/detection-study.md). After every change of the choosing set the present weights were better on
# the newest batches. If they are worse, little else is a sign of health.
HARMED: Final = 0.3
SOUND: Final = 0.15
HEALED: Final = 0.05
DESTROYED: Final = 0.75
# A way is at least this share of the loss itself: a run that begins fine-tuned has hardly come down.
_WAY_LEAST: Final = 0.5
_TINY: Final = 1e-12
# Near the end of the way a share tells little. If the pinned weights' losses are lower by these factors after a whole
# horizon of learning, on the newest batches and on held-out ones, both futures are tried.
_FAR_NEWEST: Final = 2.5
_FAR_HELD: Final = 1.5
# The mean loss of a few batches lies within this factor of the level, or it is another loss.
_USUAL: Final = math.log(1.6)


class Judgement(Enum):
    """What a comparison says about a rise."""

    WEIGHTS = "weights"
    DATA = "data"
    CHANGED = "changed"
    UNCLEAR = "unclear"


class Losses(Struct, frozen=True, omit_defaults=True):
    """Mean losses of the same batches, by the present weights and by the pinned ones.

    `error`: the standard error of their difference over the batches; 0: not known.
    """

    now: float
    pinned: float
    error: float = 0.0

    @property
    def is_learnt(self) -> bool:
        """Whether the present weights are better by more than the noise."""
        return self.error > 0.0 and self.now < self.pinned - ERRORS * self.error

    @property
    def is_no_worse(self) -> bool:
        """Whether the present weights are not worse by more than the noise."""
        return self.now <= self.pinned + ERRORS * self.error


class Comparison(Struct, frozen=True):
    """What was measured. None: it could not be, or there are no such batches.

    `newest`: training batches that came after the rise began. `held`: the validation. `begin`: the loss of the
    untrained network. `usual`: the level of the loss when the pinned state was kept; 0: not known.
    """

    newest: Losses | None
    held: Losses | None
    begin: float
    usual: float = 0.0


def lost(losses: Losses | None, begin: float) -> float | None:
    """Return the share of the way that the present weights have lost; negative if they are better. None: not known."""
    if losses is None or not math.isfinite(losses.pinned):
        return None
    if not math.isfinite(losses.now):
        return math.inf
    way = max(begin - losses.pinned, _WAY_LEAST * abs(losses.pinned), _TINY)
    return (losses.now - losses.pinned) / way


def _is_far(found: Comparison) -> bool:
    """Return whether both losses are several times those of the pinned weights."""
    newest, held = found.newest, found.held
    if newest is None or held is None or min(newest.pinned, held.pinned) <= 0.0:
        return False
    return newest.now > _FAR_NEWEST * newest.pinned and held.now > _FAR_HELD * held.pinned


def _is_usual(found: Comparison) -> bool:
    """Return whether the pinned weights lose on the newest batches what they used to lose.

    If not, the batches changed, or something outside the weights that belongs to them, such as a queue of negatives.
    """
    if found.newest is None or found.usual <= 0.0 or found.newest.pinned <= 0.0:
        return True
    return abs(math.log(found.newest.pinned / found.usual)) < _USUAL


def judged(found: Comparison) -> Judgement:
    """Return what the comparison says.

    Without held-out batches nothing tells what was forgotten. If the newest batches are learnt, a trial could not tell
    it either: both of its branches are asked about such batches, and one of them has trained with fewer.
    """
    held, newest = lost(found.held, found.begin), lost(found.newest, found.begin)
    if held is None:
        if newest is not None and newest >= HARMED and _is_usual(found):
            return Judgement.WEIGHTS
        return Judgement.CHANGED if found.newest is not None and found.newest.is_learnt else Judgement.UNCLEAR
    if newest is not None and newest < HARMED:
        if held >= DESTROYED:
            return Judgement.DATA
        # A new objective is learnt at the expense of the old one, and only its owner knows whether that is meant.
        is_sound = newest <= 0.0 or (held < HEALED and not _is_far(found))
        return Judgement.CHANGED if is_sound else Judgement.UNCLEAR
    if held >= HARMED:
        return Judgement.WEIGHTS if _is_usual(found) else Judgement.UNCLEAR
    if newest is None and held < SOUND:
        return Judgement.CHANGED
    return Judgement.UNCLEAR


def returned_is_better(returned: float, went_on: float, error: float = 0.0) -> bool:
    """Return whether the branch that went back is the better one after a trial. `returned`, `went_on`: mean losses.

    `error`: the standard error of their difference. A tie keeps the branch that went on: it has made more updates.
    """
    if not math.isfinite(went_on):
        return math.isfinite(returned)
    return returned < went_on - ERRORS * error
