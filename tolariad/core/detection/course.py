"""The course of the loss: where it began, what it swung by, which rates it was trained with; the limits that follow from it.

Promises: a pure fold over losses, with the gradient norms' envelope beside it, changed in place by one owner; its state is a
value. `refresh` says if the level has risen so far that it is to be recorded, or to be gone back for.
It must not know: single unhealthy steps, or what is done about them.
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

# Steps: from here on single values are judged, the first blocks are over, rare kinds of batches have been seen, the run is known.
WARM: Final = 64
_YOUNG: Final = 256
_KINDS_KNOWN: Final = 512
_SIGNED_YOUNG: Final = 1024
_OLD: Final = 2048
# So many gradient norms of exactly zero since the last eight others: the network has died.
_DEAD: Final = 16
_TURN: Final = math.log(1.5)
_TURN_SPREADS: Final = 6.0
_LOG_2: Final = math.log(2.0)
_LOG_3: Final = math.log(3.0)
_LOG_4: Final = math.log(4.0)
_LOG_100: Final = math.log(100.0)
_NEVER: Final = 1 << 30
# Looks at the level, one each eight steps, that a rise must last if single losses have been as high before: bursts of them can
# hold the median of 32 for a while.
_LOOKS: Final = 5
# A learning rate that rose so far explains a rise of the loss, if the run has had it before.
_RATE_ROSE: Final = 1.5
_RATE_KNOWN: Final = 1.2


class CourseState(Struct, frozen=True):
    """Everything that is known of the loss. Levels are on its scale; `floor` and rates are not.

    `begin` and `begin_low`: median and lower quartile of the first eight losses. `floor`: below it nothing is too much; 0 until it is known. `said`:
    the rise in progress has been recorded; `looks`: so often in a row it was high enough to go back for. `dead`: gradient norms of exactly zero since eight others. `rate`: the learning
    rate; `rates`: those at the end of each of the last blocks; `rates_top`: the highest before them.
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
    """The loss, from which its owner reads `least` and `limit`: between them a loss is healthy.

    `unit`: what a loss of either sign is measured in; `may_go_back`: whether a rise may be gone back for at all.
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
        """Everything as a value."""
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
        """A loss of either sign without a unit does not tell a success from a fault."""
        return self.losses.is_log or self._unit is not None

    # -- limits --------------------------------------------------------------------------------------------------------

    def _set_floor(self, floor: float) -> None:
        self.floor = floor
        self._log_floor = math.log(floor) if floor > 0.0 else -math.inf

    def _floor_above(self, level: float) -> float:
        """The floor; but no further above `level` than x100, so that an absurd start blinds nobody."""
        return min(self._log_floor, level + max(_LOG_100, 30.0 * self.losses.spread))

    def _cold(self) -> float:
        """The limit of the first steps, on the loss's scale.

        Noise and leaps are those between neighbours: a run that diverges from its first step on must not raise its own limit.
        """
        last = self.losses.last
        steps: list[float] = sorted(map(sub, last[1:], last))
        noise = 1.05 * sorted(map(abs, steps))[len(steps) // 2]
        if self.losses.is_log:
            # More than one leap as high: single losses lie there now and then.
            return self._begin_low + max(math.log(self._rules.cold), 8.0 * noise, 1.2 * steps[-2] + _LOG_2)
        return self._begin + 100.0 * (abs(self._begin) + noise)

    def _set_limit(self) -> None:
        """Above it a step is skipped."""
        losses = self.losses
        if not losses.count:
            self.limit, self._least_rise = NO_LIMIT, NO_LIMIT
            return
        level, spread = losses.level, losses.spread
        self._least_rise = math.log(self._rules.rise) if losses.is_log else 0.5 * self._rules.signed * spread
        if losses.count < WARM:
            top = self._cold()
        else:
            # The builtins `min` and `max` would cost a tenth of all this.
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
        """Where the loss has exploded, in its own unit. Asked if something was found: to know it always would cost too much."""
        losses, rules = self.losses, self._rules
        if not losses.count:
            return NO_LIMIT
        level, spread, excess = losses.level, losses.spread, losses.excess
        if losses.count < WARM:
            top = self._cold()
        elif losses.is_log:
            # Nearly twice the excess: two kinds of batches may come together.
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
        """So many losses in a row above the explosion limit are no accident of their batches.

        One more is asked for if single losses far above the rest are seen now and then. In the first steps nobody knows yet if
        they are: so those before must have been high as well, as they are in a run that climbs.
        """
        losses = self.losses
        if losses.count < WARM and losses.is_log:
            before = [*losses.last, *map(math.log, losses.fresh)][-5:]
            return 2 if min(before) > self._begin_low + _LOG_4 else _NEVER
        often = losses.excess > (_LOG_3 if losses.is_log else 35.0 * losses.spread)
        return 3 if often or losses.count < _KINDS_KNOWN else 2

    # -- levels --------------------------------------------------------------------------------------------------------

    def refresh(self) -> Verdict | None:
        """Take the fresh losses in; what there is to say of the level they are at."""
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
            # A run that rises from its first step on has no blocks from before.
            rise = max(rise, level - self._begin - 2.0 * losses.spread)
        if rise > self._least_rise:
            return self._risen(rise)
        self._looks = 0
        if self._said and rise <= 0.5 * self._least_rise:
            self._said = False
        return None

    def _risen(self, rise: float) -> Verdict | None:
        """The level has risen. Is that to be recorded, or to be gone back for?"""
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
            # Given once: if nobody acts on it, this is the level now.
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
        """How far the level must have risen to go back for it, on the loss's scale."""
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
        """Do the gradients say that the network has stopped to learn?"""
        norms = self._norms
        if self.dead >= _DEAD:
            return True
        return bool(norms.blocks) and norms.level_now() < upper_quartile(norms.blocks) - max(_LOG_3, 1.5 * norms.spread)

    def _explained(self) -> bool:
        """Is the loss below what the run began with, and do gradients or learning rate say that it will come down again?"""
        losses, norms = self.losses, self._norms
        if losses.level >= self._begin:
            return False
        if self._rate_rose():
            return True
        if not norms.blocks:
            return losses.level < self._begin - _LOG_2 if losses.is_log else True
        return norms.level_now() > norms.base + max(_TURN, 0.75 * norms.spread)

    def restarts(self, loss: float) -> bool:
        """Is a loss that is high explained by a learning rate that rose a moment ago?"""
        return self.losses.is_log and loss < exp(self._begin) and self._rate_rose(2)

    def _rate_rose(self, blocks: int = BLOCKS) -> bool:
        """Has the learning rate risen within the last `blocks`, to where it has been before? That is a warm restart."""
        rates = self._rates
        if not rates:
            return False
        low = min(rates[-blocks:])
        before = max(self._rates_top, *rates[: len(rates) - rates[::-1].index(low)])
        return self.rate > _RATE_ROSE * low and self.rate <= _RATE_KNOWN * before

    def _verdict(self, finding: Finding, distance: float) -> Verdict:
        """Of the level, which lies more than `distance` above the base."""
        losses = self.losses
        base, half = losses.base, losses.base + 0.5 * distance
        high = sum(value > half for value in losses.last)
        unit = exp if losses.is_log else float
        value, baseline, limit = unit(losses.level), unit(base), unit(base + distance)
        return Verdict(finding, Signal.LOSS, value, baseline, limit, max(1, high), self.explosion_limit())

    def go_linear(self) -> None:
        """A loss below zero has come: from now on losses are taken as they are."""
        losses, level = self.losses, self.losses.level
        if losses.count:
            self._begin, self._begin_low = exp(self._begin), exp(self._begin_low)
            self._swing.go_linear(exp(level), linear(level, self._swing.size))
        losses.go_linear()
        self.least = -NO_LIMIT
        self._set_floor(0.0)
        self._set_limit()
