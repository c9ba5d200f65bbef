"""Budgets and their measurements: slice, apply table.

Durations come from the trainer's histograms and from events that contain them. An overrun is an event. If the budget
is a soft one for a time, the overrun is also a failure of the breaker with the budget's name. An open breaker, or three
slow epoch boundaries in a row, lead to conservative mode. In the mode these limits are doubled.

Invariants: no budget ever discards a weight. With `budgets.act: false` overruns are only recorded. The share of a run
that all of tolariad costs (percent) is shown and leads to nothing. The fold holds only what acts: the histograms are
added up from the same events in `tolariad.telemetry.histograms`.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import asdict, replace

from tolariad.core.base import Cause, Event
from tolariad.core.checkpoints import words as ck
from tolariad.core.folding import ApplyTable
from tolariad.core.health import budget_words as budgets
from tolariad.core.health import words as hv
from tolariad.core.health.budgets import BUDGETS, MEMORY_SHARES, SOFT_TIMES, WITH_BREAKER, Budget
from tolariad.core.health.histogram import bucket_of
from tolariad.core.rates import words as optimizer
from tolariad.core.rollback import words as rb
from tolariad.core.run import words as run
from tolariad.core.stability import Breaker, BreakerRule, BreakerState, breaker_state, failed, succeeded
from tolariad.core.strategy import words as strategy
from tolariad.core.trainer import words as trainer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tolariad.core.settings.model import Settings

BOUNDARY: Final = "epoch_boundary"
_IN_SECONDS: Final = {"us": 1e6, "ms": 1e3, "s": 1.0}
# Their times hold for a thousand million parameters. A larger model has proportionally more; a smaller one has the
# same.
_OF_A_SIZE: Final = ("checkpoint", "full_rollback", "rollback_deadline")
_BY_SIZE: Final = frozenset(name for name, one in BUDGETS.items() if {name, one.part_of} & {*_OF_A_SIZE})
_PARAMETERS: Final = 1e9
_PARTS_OF_FULL: Final = ("load", "model", "optimizer", "strategy", "seeds", "coordination")
# The memory of each part of a run, as a share of the whole.
MEMORY: Final = frozenset(f"memory_{component}" for component in MEMORY_SHARES)
# Measured and shown, but an overrun is no failure.
SHOWN_ONLY: Final = frozenset(name for name, one in BUDGETS.items() if one.unit == "percent")


class RollbackSince(msgspec.Struct, frozen=True):
    """An open rollback: its tier, when it began, how long its first phase took."""

    tier: rb.Tier
    begun_mono: int
    prepare_s: float = 0.0


class EmergencySince(msgspec.Struct, frozen=True):
    """An emergency that a rollback, or the trainer's end, answers."""

    level: hv.Level
    mono: int


class Pressure(msgspec.Struct, frozen=True):
    """Memory is short: which share is exceeded, by how much, since when by the wall clock."""

    budget: str
    percent: float
    limit: float
    since_wall: int


class BudgetState(msgspec.Struct, frozen=True):
    """Slice of RunState. `limits`: those that the configuration changed.

    `breakers`: those that are not in their initial state. `soft_factor`: that of conservative mode while it is on.
    """

    act: bool = True
    limits: dict[str, float] = {}
    breaker_rules: dict[str, run.BreakerLimits] = {}
    parameters: int = 0
    breakers: dict[str, Breaker] = {}
    slow_boundaries: int = 0
    going: RollbackSince | None = None
    raised: EmergencySince | None = None
    memory: Pressure | None = None
    soft_factor: float = 1.0

    def limit_of(self, name: str) -> float:
        """Return the limit for this run and its mode, in the budget's unit."""
        limit = self.limits.get(name, BUDGETS[name].limit)
        if name in _BY_SIZE:
            limit *= max(1.0, self.parameters / _PARAMETERS)
        return limit * self.soft_factor if name in SOFT_TIMES else limit

    def breaches(self, one: budgets.BudgetHistogram) -> int:
        """Return how many of these measurements exceeded the limit. The trainer counts those over the normal one."""
        if not one.breaches or self.soft_factor == 1.0 or one.budget not in SOFT_TIMES:
            return one.breaches
        limit = self.limit_of(one.budget)
        over = sum(each.number for each in one.counts if each.bucket >= bucket_of(limit))
        return max(1, min(one.breaches, over)) if one.worst > limit else 0

    def rule_of(self, name: str) -> BreakerRule:
        """Return the rule of this budget's breaker."""
        given = self.breaker_rules.get(name, run.BreakerLimits())
        return BreakerRule(failures=given.failures, reset_s=given.reset_s, probes=given.probes)

    def open_breakers(self, mono: int) -> tuple[str, ...]:
        """Return the budgets whose breakers are open."""
        is_open = BreakerState.OPEN
        return tuple(
            name
            for name, one in sorted(self.breakers.items())
            if breaker_state(one, self.rule_of(name), mono / 1e9) is is_open
        )


def limits_of(settings: Settings) -> dict[str, float]:
    """Return the limits that the configuration sets to another value than the table."""
    changed = {}
    for budget in BUDGETS.values():
        if not budget.setting:
            continue
        value: Any = reduce(getattr, budget.setting.split("."), settings)
        if float(value) != budget.limit:
            changed[budget.name] = float(value)
    return changed


def breakers_of(settings: Settings) -> dict[str, run.BreakerLimits]:
    """Return the breaker rules that the configuration gives for budgets."""
    return {name: run.BreakerLimits(**asdict(rule)) for name, rule in settings.breakers.items() if name in BUDGETS}


# -- what events say of budgets ----------------------------------------------------------------------------------------


def in_unit(budget: Budget, seconds: float) -> float:
    """Return a duration in the budget's unit."""
    return seconds * _IN_SECONDS[budget.unit]


_Found = tuple[tuple[str, float], ...]


def measured(s: BudgetState, event: Event) -> tuple[tuple[str, float], ...]:
    """Return each budget of which the event contains a duration, with its value in the budget's unit.

    `s`: the slice before the event.
    """
    say = SAY.get(type(event))
    return tuple((name, in_unit(BUDGETS[name], seconds)) for name, seconds in say(s, event)) if say else ()


def _of_checkpoint(_: BudgetState, e: ck.CheckpointCommitted) -> _Found:
    spans = e.spans
    # Waiting for the throttle is intended and does not count.
    whole = ("checkpoint", max(0.0, e.seconds - spans.throttled))
    if spans.throttled:
        return (whole,)
    parts = ("model", "optimizer", "strategy", "seeds", "write")
    taken = tuple((f"checkpoint_{part}", getattr(spans, part)) for part in parts)
    return (whole, *(one for one in taken if one[1]))


def _of_prepared(s: BudgetState, e: rb.RollbackPrepared) -> _Found:
    is_fast = s.going is not None and s.going.tier is rb.Tier.FAST
    return (("fast_prepare", e.seconds),) if is_fast else ()


def _of_rollback(s: BudgetState, e: rb.RolledBack) -> _Found:
    going = s.going
    if going is None or e.by_start:
        return ()
    found: list[tuple[str, float]] = [("rollback_deadline", max(0, e.mono - going.begun_mono) / 1e9)]
    if going.tier is rb.Tier.FAST:
        whole = going.prepare_s + e.commit_s + e.confirm_s
        found += [("fast_commit", e.commit_s), ("fast_confirm", e.confirm_s), ("fast_rollback", whole)]
    else:
        found.append(("full_rollback", e.commit_s + e.confirm_s))
        taken = ((f"full_{part}", getattr(e.spans, part)) for part in _PARTS_OF_FULL)
        found += [one for one in taken if one[1]]
    return (*found, *_of_reaction(s, e, hv.Level.SEVERE))


def _of_heard(s: BudgetState, e: rb.RollbackHeard) -> _Found:
    """The budget is the time until the full tier begins. Its duration has a budget of its own."""
    return _of_reaction(s, e, hv.Level.MAJOR)


def _of_reaction(s: BudgetState, e: Event, level: hv.Level) -> _Found:
    """Return how long the reaction to an emergency of this level took, if one waits for its reaction."""
    if s.raised is None or s.raised.level is not level:
        return ()
    return ((f"emergency_{level.value}", max(0, e.mono - s.raised.mono) / 1e9),)


def _of_rebuild(_: BudgetState, e: optimizer.OptimizerRebuildCommitted) -> _Found:
    return (("optimizer_rebuild", e.elapsed_ms / 1e3),)


# The parts of a question that have a budget. The deadline is beside them: it counts by the clock.
_PARTS_OF_QUESTION: Final = (
    ("state_assembly", "assembly"),
    ("serialization", "encoding"),
    ("strategy_answer", "answer"),
    ("boundary_check", "check"),
)


def _of_answer(_: BudgetState, e: strategy.StrategyAnswered) -> _Found:
    spans, waits = e.spans, e.spans.waits or strategy.StrategyWaits()
    taken = ((name, getattr(spans, part), getattr(waits, part)) for name, part in _PARTS_OF_QUESTION)
    found = tuple((name, max(0.0, seconds - wait)) for name, seconds, wait in taken if seconds)
    return (*found, ("strategy_deadline", spans.answer)) if spans.answer else found


def waited(event: Event) -> Mapping[str, float]:
    """Return for how much of each duration of the event nothing ran, in the budget's unit; only what is known."""
    if not isinstance(event, strategy.StrategyAnswered) or event.spans.waits is None:
        return {}
    return {
        name: in_unit(BUDGETS[name], getattr(event.spans.waits, part))
        for name, part in _PARTS_OF_QUESTION
        if getattr(event.spans, part)
    }


def _of_end(s: BudgetState, e: trainer.TrainerDied | trainer.TrainerEnded) -> _Found:
    """The freeze through the shared page is faster than this. By now the process that could train is gone."""
    of_daemon = isinstance(e, trainer.TrainerDied) and e.reason is trainer.DeathReason.WITH_DAEMON
    return () if of_daemon else _of_reaction(s, e, hv.Level.CRITICAL)


SAY: Final[dict[type[Event], Callable[[BudgetState, Any], _Found]]] = {
    ck.CheckpointCommitted: _of_checkpoint,
    rb.RollbackHeard: _of_heard,
    rb.RollbackPrepared: _of_prepared,
    rb.RolledBack: _of_rollback,
    optimizer.OptimizerRebuildCommitted: _of_rebuild,
    trainer.TrainerDied: _of_end,
    trainer.TrainerEnded: _of_end,
    strategy.StrategyAnswered: _of_answer,
}


# -- the fold ----------------------------------------------------------------------------------------------------------


def _configured(s: BudgetState, e: run.RunStarted | run.ConfigChanged, _: Cause) -> BudgetState:
    policy = e.policy
    return replace(s, act=policy.budgets_act, limits=policy.budget_limits, breaker_rules=policy.breakers)


def _context(s: BudgetState, e: trainer.ExecutionContextRecorded, _: Cause) -> BudgetState:
    return replace(s, parameters=e.parameters)


def _measured(s: BudgetState, e: Event, _: Cause) -> BudgetState:
    """Each duration that the event says is one success or failure of its breaker."""
    for name, value in measured(s, e):
        s = _judged(s, name, exceeded=value > s.limit_of(name), mono=e.mono)
    return s


def _told(s: BudgetState, e: budgets.BudgetsMeasured, _: Cause) -> BudgetState:
    for one in e.tallies:
        if one.budget in BUDGETS:
            s = _judged(s, one.budget, exceeded=s.breaches(one) > 0, mono=e.mono)
    return s


def _answered(s: BudgetState, e: strategy.StrategyAnswered, at: Cause) -> BudgetState:
    return _misread(_measured(s, e, at), e)


def _unanswered(s: BudgetState, e: strategy.StrategyTimedOut, _: Cause) -> BudgetState:
    """A question without an answer is one failure, however soon that was known."""
    if e.reason is strategy.NoAnswer.OVERTAKEN:
        return s
    return _misread(_judged(s, "strategy_deadline", exceeded=True, mono=e.mono), e)


def _misread(s: BudgetState, e: strategy.StrategyAnswered | strategy.StrategyTimedOut) -> BudgetState:
    return _judged(s, "serialization", exceeded=True, mono=e.mono) if e.misread else s


def _set(s: BudgetState, e: strategy.BreakerSet, _: Cause) -> BudgetState:
    if e.breaker not in WITH_BREAKER:
        return s
    rest = {name: one for name, one in s.breakers.items() if name != e.breaker}
    if e.state is not BreakerState.OPEN:
        return replace(s, breakers=rest)
    opened = Breaker(failures=s.rule_of(e.breaker).failures, opened=e.mono / 1e9)
    return replace(s, breakers={**rest, e.breaker: opened})


def _judged(s: BudgetState, name: str, *, exceeded: bool, mono: int) -> BudgetState:
    if not s.act:
        return s
    if name == BOUNDARY:
        return replace(s, slow_boundaries=s.slow_boundaries + 1 if exceeded else 0)
    if name not in WITH_BREAKER:
        return s
    before = s.breakers.get(name, Breaker())
    step = failed if exceeded else succeeded
    after = step(before, s.rule_of(name), mono / 1e9)
    rest = {one: breaker for one, breaker in s.breakers.items() if one != name}
    return replace(s, breakers=rest if after == Breaker() else {**rest, name: after})


def _begun(s: BudgetState, e: rb.RollbackBegun, _: Cause) -> BudgetState:
    return replace(s, going=RollbackSince(e.tier, e.mono))


def _prepared(s: BudgetState, e: rb.RollbackPrepared, at: Cause) -> BudgetState:
    s = _measured(s, e, at)
    return s if s.going is None else replace(s, going=replace(s.going, prepare_s=e.seconds))


def _escalated(s: BudgetState, _: rb.RollbackEscalated, __: Cause) -> BudgetState:
    return s if s.going is None else replace(s, going=RollbackSince(rb.Tier.FULL, s.going.begun_mono))


def _given_up(s: BudgetState, _: Event, __: Cause) -> BudgetState:
    return replace(s, going=None, raised=None)


def _frozen(s: BudgetState, _: Event, __: Cause) -> BudgetState:
    is_answer = s.raised is not None and s.raised.level is hv.Level.CRITICAL
    return replace(s, going=None, raised=s.raised if is_answer else None)


def _ended(s: BudgetState, e: trainer.TrainerDied | trainer.TrainerEnded, at: Cause) -> BudgetState:
    if s.raised is None or s.raised.level is not hv.Level.CRITICAL:
        return s
    return replace(_measured(s, e, at), raised=None)


def _raised(s: BudgetState, e: hv.EmergencyRaised, _: Cause) -> BudgetState:
    return s if e.level is hv.Level.MINOR else replace(s, raised=EmergencySince(e.level, e.mono))


def _no_emergency(s: BudgetState, _: Event, __: Cause) -> BudgetState:
    return s if s.raised is None else replace(s, raised=None)


def _careful(s: BudgetState, e: hv.ConservativeModeEntered, _: Cause) -> BudgetState:
    return replace(s, slow_boundaries=0, soft_factor=e.soft_factor)


def _normal(s: BudgetState, _: hv.ConservativeModeLeft, __: Cause) -> BudgetState:
    return replace(s, slow_boundaries=0, soft_factor=1.0)


def _pressed(s: BudgetState, e: budgets.MemoryPressed, _: Cause) -> BudgetState:
    return replace(s, memory=Pressure(e.budget, e.percent, e.limit, e.wall))


def _relieved(s: BudgetState, _: budgets.MemoryRelieved, __: Cause) -> BudgetState:
    return replace(s, memory=None)


OVERRUNS: Final[ApplyTable] = {
    run.RunStarted: _configured,
    run.ConfigChanged: _configured,
    run.RunFrozen: _frozen,
    run.RunResumed: _no_emergency,
    trainer.TrainerStarted: _no_emergency,
    trainer.TrainerDied: _ended,
    trainer.TrainerEnded: _ended,
    trainer.ExecutionContextRecorded: _context,
    budgets.BudgetsMeasured: _told,
    budgets.MemoryPressed: _pressed,
    budgets.MemoryRelieved: _relieved,
    ck.CheckpointCommitted: _measured,
    optimizer.OptimizerRebuildCommitted: _measured,
    rb.RollbackBegun: _begun,
    rb.RollbackHeard: _measured,
    rb.RollbackPrepared: _prepared,
    rb.RollbackEscalated: _escalated,
    rb.RolledBack: _measured,
    rb.RollbackAborted: _given_up,
    strategy.StrategyAnswered: _answered,
    strategy.StrategyTimedOut: _unanswered,
    strategy.BreakerSet: _set,
    hv.EmergencyRaised: _raised,
    hv.EmergencyCleared: _given_up,
    hv.ConservativeModeEntered: _careful,
    hv.ConservativeModeLeft: _normal,
}
