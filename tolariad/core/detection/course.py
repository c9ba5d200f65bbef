"""Follow the loss: its first values, its largest completed rise, its learning rates, and the limits computed from them.

Promises: a pure fold over losses, with the envelope of the gradient norms as second input. One owner changes it in
place; its state is a value. `refresh` returns a verdict if the level has risen so far that the run must record it or
roll back.
"""

from __future__ import annotations

import math
from operator import sub
from typing import Final

from msgspec import Struct

from tolariad.core.detection.envelope import (
    BLOCKS,
    LEAST,
    NO_LIMIT,
    Envelope,
    EnvelopeState,
    exp,
    linear,
    upper_quartile,
)
from tolariad.core.detection.rules import Finding, Rules, Signal, Verdict
from tolariad.core.detection.swing import Swing, SwingState

# Numbers of steps. From WARM on, single values are compared with the level. At _YOUNG the first blocks are complete. At
# _KINDS_KNOWN the run has met its rare kinds of batches. At _OLD a run without swings counts as quiet.
WARM: Final = 64
_YOUNG: Final = 256
_KINDS_KNOWN: Final = 512
_SIGNED_YOUNG: Final = 1024
_OLD: Final = 2048
# If so many gradient norms of exactly zero come within eight that are not zero, the network has died.
_DEAD: Final = 16
_TURN: Final = math.log(1.5)
_TURN_SPREADS: Final = 6.0
_LOG_2: Final = math.log(2.0)
_LOG_3: Final = math.log(3.0)
_LOG_4: Final = math.log(4.0)
_LOG_100: Final = math.log(100.0)
_NEVER: Final = 1 << 30
# A rise must last for so many refreshes (one every eight steps) if single losses have been as high before: bursts of
# them can hold the median of 32 for a while.
_LOOKS: Final = 5
# A learning rate that rose by this factor explains a rise of the loss, if the run has had that rate before.
_RATE_ROSE: Final = 1.5
_RATE_KNOWN: Final = 1.2


class CourseState(Struct, frozen=True):
    """The state of the loss's course. Levels are on the scale of the loss; `floor` and rates are not.

    `begin`, `begin_low`: median and lower quartile of the first eight losses. `floor`: no loss below it is too high; 0
    until known. `said`: the rise in progress has been recorded. `looks`: how many refreshes in a row the rise was high
    enough for a rollback. `dead`: gradient norms of exactly zero since eight others. `rate`: the learning rate.
    `rates`: the rate at the end of each of the last blocks. `rates_top`: the highest rate before those.
    """

    losses: EnvelopeState = EnvelopeState()
    swing: SwingState = SwingState()
    begin: float = 0.0
    begin_low: float = 0.0
    floor: float = 0.0
    said: bool = False
    looks: int = 0
    dead: int = 0
    rate: float = 0.0
    rates: tuple[float, ...] = ()
    rates_top: float = 0.0


class Course:
    """The loss. A loss between `least` and `limit` is healthy.

    `unit`: the unit of a loss that can have either sign. `may_go_back`: whether a rise may ever call for a rollback.
    """

    __slots__ = (
        "_begin",
        "_begin_low",
        "_least_rise",
        "_log_floor",
        "_looks",
        "_norms",
        "_rates",
        "_rates_top",
        "_rules",
        "_said",
        "_spike",
        "_swing",
        "_unit",
        "dead",
        "floor",
        "fresh",
        "least",
        "limit",
        "losses",
        "rate",
    )

    def __init__(self, state: CourseState, norms: Envelope, rules: Rules, unit: float | None) -> None:
        self._norms, self._rules, self._unit = norms, rules, unit
        self._spike = math.log(rules.spike)
        self.losses = Envelope(state.losses)
        self.fresh = self.losses.fresh
        self._swing = Swing(state.swing)
        self._begin, self._begin_low = state.begin, state.begin_low
        self._said = state.said
        self._looks = state.looks
        self.dead, self.rate, self._rates, self._rates_top = state.dead, state.rate, list(state.rates), state.rates_top
        self.least = LEAST if self.losses.is_log else -NO_LIMIT
        self._set_floor(state.floor)
        self._set_limit()

    def state(self) -> CourseState:
        """Return the state as a value."""
        return CourseState(
            losses=self.losses.state(),
            swing=self._swing.state(),
            begin=self._begin,
            begin_low=self._begin_low,
            floor=self.floor,
            said=self._said,
            looks=self._looks,
            dead=self.dead,
            rate=self.rate,
            rates=tuple(self._rates),
            rates_top=self._rates_top,
        )

    @property
    def may_go_back(self) -> bool:
        """Return whether a rise may call for a rollback.

        Without a unit, a loss of either sign cannot tell success from fault.
        """
        return self.losses.is_log or self._unit is not None

    # -- limits --------------------------------------------------------------------------------------------------------

    def _set_floor(self, floor: float) -> None:
        self.floor = floor
        self._log_floor = math.log(floor) if floor > 0.0 else -math.inf

    def _floor_above(self, level: float) -> float:
        """Return the floor, but at most x100 above `level`: an absurdly high first loss must not disable the limits."""
        return min(self._log_floor, level + max(_LOG_100, 30.0 * self.losses.spread))

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
            return self._begin_low + max(math.log(self._rules.cold), 8.0 * noise, 1.2 * steps[-2] + _LOG_2)
        return self._begin + 100.0 * (abs(self._begin) + noise)

    def _set_limit(self) -> None:
        """Set the limit above which a step is skipped."""
        losses = self.losses
        if not losses.count:
            self.limit, self._least_rise = NO_LIMIT, NO_LIMIT
            return
        level, spread = losses.level, losses.spread
        self._least_rise = math.log(self._rules.rise) if losses.is_log else 0.5 * self._rules.signed * spread
        if losses.count < WARM:
            top = self._cold()
        else:
            # The builtins `min` and `max` would cost a tenth of this function.
            reach, often = self._rules.spreads * spread, 1.15 * losses.excess + spread
            reach = reach if reach > often else often  # noqa: FURB136
            if losses.is_log and reach < self._spike:
                reach = self._spike
            top = level + reach
            if losses.count < _YOUNG:
                top = min(top, self._cold())
        if top < self._log_floor:
            top = max(top, self._floor_above(level))
        self.limit = exp(top) if losses.is_log else top
        losses.reach = top - level

    def explosion_limit(self) -> float:
        """Return the loss above which it has exploded, in its own unit.

        Computed only after a finding, because it is costly.
        """
        losses, rules = self.losses, self._rules
        if not losses.count:
            return NO_LIMIT
        level, spread, excess = losses.level, losses.spread, losses.excess
        if losses.count < WARM:
            top = self._cold()
        elif losses.is_log:
            # Nearly twice the excess: two rare kinds of batches may coincide.
            both = 1.5 * excess + min(0.5 * excess, 1.0) + spread
            top = level + max(math.log(rules.explosion), rules.spreads * spread, both)
        else:
            most = rules.explosion - 1.0
            apart = max(rules.explosion * rules.spreads * spread, 2.0 * (1.15 * excess + spread), most * abs(level))
            top = level + max(apart, most * (self._unit or 0.0))
        if losses.count < _YOUNG:
            top = min(top, self._cold())
        return exp(max(top, self._floor_above(level))) if losses.is_log else top

    @property
    def explodes_in(self) -> int:
        """Return how many losses in a row above the explosion limit cannot be an accident of their batches.

        The number is one higher if single losses far above the rest occur occasionally. In the first steps this is not
        known yet. There the losses before must have been high as well, as they are in a run that climbs.
        """
        losses = self.losses
        if losses.count < WARM and losses.is_log:
            before = [*losses.last, *map(math.log, losses.fresh)][-5:]
            return 2 if min(before) > self._begin_low + _LOG_4 else _NEVER
        often = losses.excess > (_LOG_3 if losses.is_log else 35.0 * losses.spread)
        return 3 if often or losses.count < _KINDS_KNOWN else 2

    # -- levels --------------------------------------------------------------------------------------------------------

    def refresh(self) -> Verdict | None:
        """Add the fresh losses and return a verdict on their level, or None."""
        losses, swing = self.losses, self._swing
        is_first = not losses.count
        losses.refresh()
        level = losses.level
        if is_first:
            ordered = losses.ordered
            self._begin, self._begin_low = level, ordered[len(ordered) // 4]
        elif self.floor == 0.0 and losses.is_log and losses.count >= WARM:
            self._set_floor(self._rules.floor * exp(level))
        swing.follow(level, _TURN if losses.is_log else _TURN_SPREADS * losses.spread)
        if losses.block_ended:
            swing.block_ended()
            self._rates.append(self.rate)
            if len(self._rates) > BLOCKS:
                self._rates_top = max(self._rates_top, self._rates.pop(0))
        self._set_limit()
        rise = level - losses.base
        if losses.count < _YOUNG:
            # A run that rises from its first step on has no earlier blocks to compare with.
            rise = max(rise, level - self._begin - 2.0 * losses.spread)
        if rise > self._least_rise:
            return self._risen(rise)
        self._looks = 0
        if self._said and rise <= 0.5 * self._least_rise:
            self._said = False
        return None

    def _risen(self, rise: float) -> Verdict | None:
        """Return the verdict on a level that has risen: record it, roll back, or None."""
        losses, rules = self.losses, self._rules
        if not losses.blocks or (losses.is_log and losses.level <= self._floor_above(losses.base)):
            self._looks = 0
            return None
        need, swung, spread = self._need(), self._swing.size, losses.spread
        goes_back = max(need, rules.swings * swung, 1.5 * spread)
        self._looks = self._looks + 1 if rise > goes_back else 0
        lasts = self._looks >= (_LOOKS if losses.often > max(0.75 * goes_back, 3.0 * spread) else 1)
        if lasts and self.may_go_back and not self._explained():
            found = self._verdict(Finding.SUSTAINED, goes_back)
            # Report it once. If no rollback follows, this level becomes the normal one.
            self._swing.begin_again(losses.level, rise)
            losses.begin_again()
            self._said, self._looks = False, 0
            return found
        said = max(self._least_rise, swung, 1.05 * spread) if losses.is_log else max(0.5 * need, swung)
        if rise > said and not self._said:
            self._said = True
            return self._verdict(Finding.RISE, said)
        return None

    def _need(self) -> float:
        """Return how far the level must have risen to call for a rollback, on the scale of the loss."""
        losses, rules = self.losses, self._rules
        count, level, blocks = losses.count, losses.level, losses.blocks
        if not losses.is_log:
            spreads = rules.signed if count >= _SIGNED_YOUNG else rules.signed_young
            apart = max(0.3 * (self._begin - losses.base), 0.5 * abs(losses.base), self._unit or 0.0)
            return max(spreads * losses.spread, apart)
        if count < _YOUNG:
            return math.log(rules.young)
        if self._gradients_died():
            return math.log(rules.rise)
        before = blocks[-4:-1]
        jumped = self._looks > 0 or (bool(before) and level > max(before) + math.log(rules.edge))
        quiet = count >= _OLD and self._swing.size < _TURN
        return math.log(rules.jump if jumped or quiet else rules.slow)

    def _gradients_died(self) -> bool:
        """Return whether the gradients show that the network has stopped learning."""
        norms = self._norms
        if self.dead >= _DEAD:
            return True
        return bool(norms.blocks) and norms.level_now() < upper_quartile(norms.blocks) - max(_LOG_3, 1.5 * norms.spread)

    def _explained(self) -> bool:
        """Return whether the loss is below its first values, and gradients or rate predict that it will fall again."""
        losses, norms = self.losses, self._norms
        if losses.level >= self._begin:
            return False
        if self._rate_rose():
            return True
        if not norms.blocks:
            return losses.level < self._begin - _LOG_2 if losses.is_log else True
        return norms.level_now() > norms.base + max(_TURN, 0.75 * norms.spread)

    def restarts(self, loss: float) -> bool:
        """Return whether a learning rate that rose a moment ago explains a high loss."""
        return self.losses.is_log and loss < exp(self._begin) and self._rate_rose(2)

    def _rate_rose(self, blocks: int = BLOCKS) -> bool:
        """Return whether the rate rose within the last `blocks` to a value it had before, as in a warm restart."""
        rates = self._rates
        if not rates:
            return False
        low = min(rates[-blocks:])
        before = max(self._rates_top, *rates[: len(rates) - rates[::-1].index(low)])
        return self.rate > _RATE_ROSE * low and self.rate <= _RATE_KNOWN * before

    def _verdict(self, finding: Finding, distance: float) -> Verdict:
        """Return the verdict on the level, which lies more than `distance` above the base."""
        losses = self.losses
        base, half = losses.base, losses.base + 0.5 * distance
        high = sum(value > half for value in losses.last)
        unit = exp if losses.is_log else float
        value, baseline, limit = unit(losses.level), unit(base), unit(base + distance)
        return Verdict(finding, Signal.LOSS, value, baseline, limit, max(1, high), self.explosion_limit())

    def go_linear(self) -> None:
        """Keep losses as they are from now on, because one below zero has come."""
        losses, level = self.losses, self.losses.level
        if losses.count:
            self._begin, self._begin_low = exp(self._begin), exp(self._begin_low)
            self._swing.go_linear(exp(level), linear(level, self._swing.size))
        losses.go_linear()
        self.least = -NO_LIMIT
        self._set_floor(0.0)
        self._set_limit()
