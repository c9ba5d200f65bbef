"""Follow the loss: its first values, its largest completed rise, its learning rates, and the limits computed from them.

Promises: a pure fold over losses, with the envelope of the gradient norms as second input. One owner changes it in
place; its state is a value. `refresh` returns a verdict if the level has risen so far that the run must record it or
roll back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from operator import sub
from typing import Final

from tolariad.core.calc.detection import rules
from tolariad.core.calc.detection.envelope import (
    BLOCK,
    BLOCKS,
    Envelope,
    EnvelopeState,
    exp,
    linear,
    upper_quartile,
)
from tolariad.core.calc.detection.rules import LEAST, NO_LIMIT, Finding, Signal, Verdict
from tolariad.core.calc.detection.swing import Swing, SwingState

# Numbers of steps. From WARM on, single values are compared with the level. At _YOUNG the first blocks are complete. At
# _KINDS_KNOWN the run has met its rare kinds of batches. At _OLD a run without swings counts as quiet.
WARM: Final = 64
_YOUNG: Final = 256
_KINDS_KNOWN: Final = 512
_SIGNED_YOUNG: Final = 1024
_OLD: Final = 2048
# If this many gradient norms of exactly zero come within eight that are not zero, the network has died.
_DEAD: Final = 16
_TURN: Final = math.log(1.5)
_TURN_SPREADS: Final = 6.0
_LOG_2: Final = math.log(2.0)
_LOG_3: Final = math.log(3.0)
_LOG_4: Final = math.log(4.0)
_LOG_100: Final = math.log(100.0)
_LOST: Final = math.log(rules.LOST)
_NEVER: Final = 1 << 30
_SPIKE: Final = math.log(rules.SPIKE)
# A rise must last for this many refreshes (one every eight steps) if single losses have been as high before. Bursts of
# them can hold the median of 32 for a while.
_LOOKS: Final = 5
_LOW_BLOCKS: Final = 16
# A learning rate that rose by this factor explains a rise of the loss, if the run has had that rate before.
_RATE_ROSE: Final = 1.5
_RATE_KNOWN: Final = 1.2


@dataclass(slots=True)
class CourseState:
    """The state of the loss's course. Levels are on the scale of the loss; `floor` and rates are not.

    * `begin`, `begin_low`: median and lower quartile of the first eight losses.
    * `floor`: no loss below it is too high; 0 until it is known.
    * `said`: the rise in progress has been recorded.
    * `looks`: the number of refreshes in a row at which the rise was high enough for a rollback.
    * `dead`: the number of gradient norms of exactly zero since eight others.
    * `rate`: the learning rate at the last refresh.
    * `rates`: the learning rate at the end of each of the last blocks.
    * `rates_top`: the highest learning rate before those.
    * `lost`: the number of refreshes in a row at which most of the way that the loss had come down was gone.
    * `ceiling`: after an announced stage, the loss above which it has exploded, until the stage's level is known.
    """

    losses: EnvelopeState = field(default_factory=EnvelopeState)
    swing: SwingState = field(default_factory=SwingState)
    begin: float = 0.0
    begin_low: float = 0.0
    floor: float = 0.0
    said: bool = False
    looks: int = 0
    dead: int = 0
    rate: float = 0.0
    rates: list[float] = field(default_factory=list)
    rates_top: float = 0.0
    lost: int = 0
    ceiling: float = NO_LIMIT


@dataclass(slots=True)
class Course(CourseState):
    """The loss. A loss between `least` and `limit` is healthy.

    `unit` is the unit of a loss that can have either sign.
    """

    losses: Envelope = field(default_factory=Envelope)
    swing: Swing = field(default_factory=Swing)
    norms: Envelope = field(default_factory=Envelope)
    unit: float | None = None
    # The fields below follow from the state.
    least: float = LEAST
    limit: float = NO_LIMIT
    log_floor: float = -math.inf
    least_rise: float = NO_LIMIT
    fresh: list[float] = field(default_factory=list)
    # The lowest level of the blocks before the last two: a rise in progress does not count.
    low: float = NO_LIMIT
    # Of the newest verdict on the level: how many updates before it the rise began.
    began: int = 0

    def __post_init__(self) -> None:
        """Compute the fields that the state determines."""
        self.fresh = self.losses.fresh
        self.least = LEAST if self.losses.is_log else -NO_LIMIT
        self._set_floor(self.floor)
        self._set_low()
        self._set_limit()

    @property
    def may_go_back(self) -> bool:
        """Return whether a rise may call for a rollback.

        Without a unit, a loss of either sign cannot tell success from fault.
        """
        return self.losses.is_log or self.unit is not None

    # -- limits --------------------------------------------------------------------------------------------------------

    def _set_floor(self, floor: float) -> None:
        self.floor = floor
        self.log_floor = math.log(floor) if floor > 0.0 else -math.inf

    def _set_low(self) -> None:
        self.low = min(self.losses.blocks[-_LOW_BLOCKS:-2], default=NO_LIMIT)

    def _floor_above(self, level: float, floor: float) -> float:
        """Return the floor, but at most x100 above `level`: an absurdly high first loss must not disable the limits."""
        return min(floor, level + max(_LOG_100, 30.0 * self.losses.spread))

    def _cold(self) -> float:
        """Return the limit of the first steps, on the scale of the loss.

        Noise and jumps are measured between neighbours. A run that diverges from its first step must not raise its own
        limit.
        """
        last = self.losses.last
        steps: list[float] = sorted(map(sub, last[1:], last))
        noise = 1.05 * sorted(map(abs, steps))[len(steps) // 2]
        if self.losses.is_log:
            # Allow for more than one jump of that height: single losses lie there occasionally.
            return self.begin_low + max(math.log(rules.COLD), 8.0 * noise, 1.2 * steps[-2] + _LOG_2)
        return self.begin + 100.0 * (abs(self.begin) + noise)

    def _set_limit(self) -> None:
        """Set the limit above which a step is skipped."""
        losses = self.losses
        if not losses.count:
            self.limit, self.least_rise = exp(self.ceiling), NO_LIMIT
            return
        level, spread = losses.level, losses.spread
        self.least_rise = math.log(rules.RISE) if losses.is_log else 0.5 * rules.SIGNED * spread
        if losses.count < WARM:
            top = min(self._cold(), self.ceiling)
        else:
            # The builtins `min` and `max` would cost a tenth of this function.
            reach, often = rules.SPREADS * spread, 1.15 * losses.excess + spread
            reach = reach if reach > often else often  # noqa: FURB136
            if losses.is_log and reach < _SPIKE:
                reach = _SPIKE
            top = level + reach
            if losses.count < _YOUNG:
                top = min(top, self._cold())
        lowest = self.log_floor
        if losses.is_log and WARM <= losses.count < _KINDS_KNOWN:
            # A loss may fall fast before its rare kinds of batches are known. No first loss is a reason to skip one.
            lowest = max(lowest, self.begin)
        if top < lowest:
            top = max(top, self._floor_above(level, lowest))
        self.limit = exp(top) if losses.is_log else top
        losses.limit_at(top - level)

    def explosion_limit(self) -> float:
        """Return the loss above which it has exploded, in its own unit.

        Computed only after a finding, because it is costly.
        """
        losses = self.losses
        if not losses.count:
            return exp(self.ceiling)
        level, spread, excess = losses.level, losses.spread, losses.excess
        if losses.count < WARM:
            top = min(self._cold(), self.ceiling)
        elif losses.is_log:
            # Nearly twice the excess: two rare kinds of batches may coincide.
            both = 1.5 * excess + min(0.5 * excess, 1.0) + spread
            top = level + max(math.log(rules.EXPLOSION), rules.SPREADS * spread, both)
        else:
            most = rules.EXPLOSION - 1.0
            apart = max(rules.EXPLOSION * rules.SPREADS * spread, 2.0 * (1.15 * excess + spread), most * abs(level))
            top = level + max(apart, most * (self.unit or 0.0))
        if losses.count < _YOUNG:
            top = min(top, self._cold())
        return exp(max(top, self._floor_above(level, self.log_floor))) if losses.is_log else top

    @property
    def explodes_in(self) -> int:
        """Return how many losses in a row above the explosion limit cannot be an accident of their batches.

        The number is one higher if single losses far above the rest occur occasionally. In the first steps this is not
        known yet. There the losses before must have been high as well, as they are in a run that climbs.
        """
        losses = self.losses
        if losses.count < WARM and self.ceiling < NO_LIMIT:
            return 3
        if losses.count < WARM and losses.is_log:
            before = [*losses.last, *map(math.log, losses.fresh)][-5:]
            return 2 if min(before) > self.begin_low + _LOG_4 else _NEVER
        often = losses.excess > (_LOG_3 if losses.is_log else 35.0 * losses.spread)
        return 3 if often or losses.count < _KINDS_KNOWN else 2

    # -- levels --------------------------------------------------------------------------------------------------------

    def saw_no_gradient(self) -> None:
        """Count a gradient norm of exactly zero."""
        self.dead += 1

    def found_in_a_row(self, steps: int) -> None:
        """Remember that the newest finding is one of so many unhealthy steps in a row."""
        self.began = steps

    def saw_gradients(self) -> None:
        """Eight norms that are not zero have come: count from the beginning."""
        self.dead = 0

    def refresh(self, rate: float) -> Verdict | None:
        """Add the fresh losses and return a verdict on their level, or None. `rate`: the learning rate."""
        self.rate = rate
        losses, swing = self.losses, self.swing
        is_first = not losses.count
        losses.refresh()
        level = losses.level
        if level > self.ceiling:
            self.ceiling, self.begin, self.begin_low = NO_LIMIT, level, level  # the stage begins here
        elif is_first:
            ordered = losses.ordered
            self.begin, self.begin_low = level, ordered[len(ordered) // 4]
        elif self.floor == 0.0 and losses.is_log and losses.count >= WARM:
            self._set_floor(rules.FLOOR * exp(level))
        swing.follow(level, _TURN if losses.is_log else _TURN_SPREADS * losses.spread)
        if losses.block_ended:
            swing.block_ended()
            self._set_low()
            self.rates.append(self.rate)
            if len(self.rates) > BLOCKS:
                self.rates_top = max(self.rates_top, self.rates.pop(0))
        self._set_limit()
        rise = level - losses.base
        if losses.count < _YOUNG:
            # A run that rises from its first step on has no earlier blocks to compare with.
            rise = max(rise, level - self.begin - 2.0 * losses.spread)
        if level > self.low + _LOST and losses.is_log:
            if self._is_lost():
                # Found once. A rollback level that comes later is found as well.
                return self._verdict(Finding.LOST, _LOST, self.low)
        else:
            self.lost = 0
        if rise > self.least_rise:
            return self._risen(rise)
        self.looks = 0
        if self.said and rise <= 0.5 * self.least_rise:
            self.said = False
        return None

    def _risen(self, rise: float) -> Verdict | None:
        """Return the verdict on a level that has risen: record it, roll back, or None."""
        losses = self.losses
        if not losses.blocks or (losses.is_log and losses.level <= self._floor_above(losses.base, self.log_floor)):
            self.looks = 0
            return None
        need, swung, spread = self._need(), self.swing.size, losses.spread
        goes_back = max(need, rules.SWINGS * swung, 1.5 * spread)
        self.looks = self.looks + 1 if rise > goes_back else 0
        looks = _LOOKS if losses.often > max(0.75 * goes_back, 3.0 * spread) else 1
        if self.looks >= looks and self.may_go_back and not self._rate_explains():
            if not self._norms_explain():
                return self._sustained(rise, goes_back)
            if self.looks == looks:
                return self._verdict(Finding.EXPLAINED, goes_back, losses.base)
        said = max(self.least_rise, swung, 1.05 * spread) if losses.is_log else max(0.5 * need, swung)
        if rise > said and not self.said:
            self.said = True
            return self._verdict(Finding.RISE, said, losses.base)
        return None

    def _sustained(self, rise: float, limit: float) -> Verdict:
        """Return the verdict on a rise to go back for. It is reported once: then this level becomes the normal one."""
        found = self._verdict(Finding.SUSTAINED, limit, self.losses.base)
        self.swing.begin_again(self.losses.level, rise)
        self.losses.begin_again()
        self._set_low()
        self.said, self.looks = False, 0
        return found

    def _is_lost(self) -> bool:
        """Return whether most of the logarithmic way that the loss had come down has been gone for a while.

        The loss of a language model falls by little, so no factor tells that its network was emptied. It is compared
        with its lowest recent level: in a run that still falls, the base of 1024 steps is far above that.
        """
        losses, low = self.losses, self.low
        way, spread = self.begin - low, losses.spread
        least = max(_LOST, rules.LOST_SHARE * way, rules.LOST_SPREADS * spread, rules.SWINGS * self.swing.size)
        is_high = losses.level > max(low + least, self._floor_above(low, self.log_floor))
        is_lost = losses.count >= _KINDS_KNOWN and way > 0.0 and is_high
        self.lost = self.lost + 1 if is_lost else 0
        return self.lost == rules.LOST_LOOKS and not self._rate_explains()

    def _need(self) -> float:
        """Return how far the level must have risen to call for a rollback, on the scale of the loss."""
        losses = self.losses
        count, level, blocks = losses.count, losses.level, losses.blocks
        if not losses.is_log:
            spreads = rules.SIGNED if count >= _SIGNED_YOUNG else rules.SIGNED_YOUNG
            apart = max(0.3 * (self.begin - losses.base), 0.5 * abs(losses.base), self.unit or 0.0)
            return max(spreads * losses.spread, apart)
        if count < _YOUNG:
            return math.log(rules.YOUNG)
        if self._gradients_died():
            return math.log(rules.RISE)
        before = blocks[-4:-1]
        jumped = self.looks > 0 or (bool(before) and level > max(before) + math.log(rules.EDGE))
        quiet = count >= _OLD and self.swing.size < _TURN
        return math.log(rules.JUMP if jumped or quiet else rules.SLOW)

    def _gradients_died(self) -> bool:
        """Return whether the gradients show that the network has stopped learning."""
        norms = self.norms
        if self.dead >= _DEAD:
            return True
        return bool(norms.blocks) and norms.level_now() < upper_quartile(norms.blocks) - max(_LOG_3, 1.5 * norms.spread)

    def _rate_explains(self) -> bool:
        """Return whether the loss is below its first values, and the rate rose to a value that the run has known."""
        return self.losses.level < self.begin and self._rate_rose()

    def _norms_explain(self) -> bool:
        """Return whether the loss is below its first values, and the gradients predict that it will fall again."""
        losses, norms = self.losses, self.norms
        if losses.level >= self.begin:
            return False
        if not norms.blocks:
            return losses.level < self.begin - _LOG_2 if losses.is_log else True
        return norms.level_now() > norms.base + max(_TURN, 0.75 * norms.spread)

    def restarts(self, loss: float, rate: float) -> bool:
        """Return whether the learning rate rose a moment ago to `rate`, and so explains a high loss."""
        self.rate = rate
        return self.losses.is_log and loss < exp(self.begin) and self._rate_rose(2)

    def _rate_rose(self, blocks: int = BLOCKS) -> bool:
        """Return whether the rate rose within the last `blocks` to a value it had before, as in a warm restart."""
        rates = self.rates
        if not rates:
            return False
        low = min(rates[-blocks:])
        before = max(self.rates_top, *rates[: len(rates) - rates[::-1].index(low)])
        return self.rate > _RATE_ROSE * low and self.rate <= _RATE_KNOWN * before

    def _verdict(self, finding: Finding, distance: float, base: float) -> Verdict:
        """Return the verdict on the level, which lies more than `distance` above `base`."""
        losses, half = self.losses, base + 0.5 * distance
        high = sum(value > half for value in losses.last)
        low = min(base, self.low)
        self.began = self._since(low + 0.25 * (losses.level - low))
        unit = exp if losses.is_log else float
        value, baseline, limit = unit(losses.level), unit(base), unit(base + distance)
        return Verdict(finding, Signal.LOSS, value, baseline, limit, max(1, high), self.explosion_limit())

    def _since(self, limit: float) -> int:
        """Return how many updates ago the loss rose above `limit`, as far as blocks of 32 show it."""
        last, ago = self.losses.last, 0
        early = next((len(last) - at for at, value in enumerate(last) if value > limit), 0)
        if early < len(last):
            return early
        for level in reversed(self.losses.blocks):
            if level <= limit:
                break
            ago += BLOCK
        return len(last) + self.losses.since + ago

    def go_linear(self) -> None:
        """Keep losses as they are from now on, because one below zero has come."""
        losses, level = self.losses, self.losses.level
        if losses.count:
            self.begin, self.begin_low = exp(self.begin), exp(self.begin_low)
            self.swing.go_linear(exp(level), linear(level, self.swing.size))
        losses.go_linear()
        self._set_low()
        self.least = -NO_LIMIT
        self._set_floor(0.0)
        self.ceiling = NO_LIMIT
        self._set_limit()
