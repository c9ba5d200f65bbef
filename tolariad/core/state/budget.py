"""Budgets and their measurements: slice, apply table.

Durations come from the trainer's histograms and from events that contain them. An overrun is an event. If the budget
is a soft one for a time, the overrun is also a failure of the breaker with the budget's name. An open breaker, or three
slow epoch boundaries in a row, lead to conservative mode. In the mode these limits are doubled.

Invariants: no budget ever discards a weight. With `budgets.act: false` overruns are only recorded. The share of a run
that all of tolariad costs (percent) is shown and leads to nothing. The fold holds only what acts: the histograms are
added up from the same events in `tolariad.telemetry.histograms`.
"""

from collections.abc import Callable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import msgspec
from msgspec.structs import asdict, replace

from tolariad.core import messages as m
from tolariad.core.calc.health.breaker import Breaker, BreakerRule, BreakerState, breaker_state, failed, succeeded
from tolariad.core.calc.health.budgets import BUDGETS, MEMORY_SHARES, SOFT_TIMES, WITH_BREAKER, Budget
from tolariad.core.calc.health.histogram import bucket_of
from tolariad.core.state.fates import anew, set_back
from tolariad.core.state.fold import ApplyTable

if TYPE_CHECKING:
    from tolariad.core.calc.settings.model import Settings

BOUNDARY: Final = "epoch_boundary"
_IN_SECONDS: Final = {"us": 1e6, "ms": 1e3, "s": 1.0}
# Their limits hold for models of up to 1e9 parameters. For a larger model they grow in proportion to its parameters.
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

    tier: m.Tier
    begun_mono: int
    prepare_s: float = 0.0


class EmergencySince(msgspec.Struct, frozen=True):
    """An emergency that a rollback, or the trainer's end, answers."""

    level: m.Level
    mono: int


class Pressure(msgspec.Struct, frozen=True):
    """Memory is short: which share is exceeded, by how much, since when by the wall clock."""

    budget: str
    percent: float
    limit: float
    since_wall: int


_OVER: Final = anew("the rollback and the emergency that led to it are over")


class BudgetState(msgspec.Struct, frozen=True):
    """Slice of RunState. `limits`: those that the configuration changed.

    `breakers`: those that are not in their initial state. `soft_factor`: conservative mode's factor while it is on.
    """

    SURVIVES: ClassVar[str] = "configuration, the model's size, and how fast the machine is: of no branch"

    act: bool = True
    limits: dict[str, float] = {}
    breaker_rules: dict[str, m.BreakerLimits] = {}
    parameters: int = 0
    breakers: Annotated[dict[str, Breaker], set_back("what this rollback took is measured")] = {}
    slow_boundaries: int = 0
    going: Annotated[RollbackSince | None, _OVER] = None
    raised: Annotated[EmergencySince | None, _OVER] = None
    memory: Pressure | None = None
    soft_factor: float = 1.0

    def limit_of(self, name: str) -> float:
        """Return the limit for this run and its mode, in the budget's unit."""
        limit = self.limits.get(name, BUDGETS[name].limit)
        if name in _BY_SIZE:
            limit *= max(1.0, self.parameters / _PARAMETERS)
        return limit * self.soft_factor if name in SOFT_TIMES else limit

    def breaches(self, one: m.BudgetHistogram) -> int:
        """Return how many of these measurements exceeded the limit. The trainer counts those over the normal one."""
        if not one.breaches or self.soft_factor == 1.0 or one.budget not in SOFT_TIMES:
            return one.breaches
        limit = self.limit_of(one.budget)
        over = sum(each.number for each in one.counts if each.bucket >= bucket_of(limit))
        return max(1, min(one.breaches, over)) if one.worst > limit else 0

    def rule_of(self, name: str) -> BreakerRule:
        """Return the rule of this budget's breaker."""
        given = self.breaker_rules.get(name, m.BreakerLimits())
        return BreakerRule(failures=given.failures, reset_s=given.reset_s, probes=given.probes)

    def open_breakers(self, mono: int) -> tuple[str, ...]:
        """Return the budgets whose breakers are open."""
        is_open = BreakerState.OPEN
        return tuple(
            name
            for name, one in sorted(self.breakers.items())
            if breaker_state(one, self.rule_of(name), mono / 1e9) is is_open
        )


def limits_of(settings: "Settings") -> dict[str, float]:
    """Return the limits that the configuration sets to another value than the table."""
    changed = {}
    for budget in BUDGETS.values():
        if not budget.setting:
            continue
        value: Any = reduce(getattr, budget.setting.split("."), settings)
        if float(value) != budget.limit:
            changed[budget.name] = float(value)
    return changed


def breakers_of(settings: "Settings") -> dict[str, m.BreakerLimits]:
    """Return the breaker rules that the configuration gives for budgets."""
    return {name: m.BreakerLimits(**asdict(rule)) for name, rule in settings.breakers.items() if name in BUDGETS}


# -- what events say of budgets ----------------------------------------------------------------------------------------


def in_unit(budget: Budget, seconds: float) -> float:
    """Return a duration in the budget's unit."""
    return seconds * _IN_SECONDS[budget.unit]


_Found = tuple[tuple[str, float], ...]


def measured(s: BudgetState, event: m.Event) -> tuple[tuple[str, float], ...]:
    """Return each budget of which the event contains a duration, with its value in the budget's unit.

    `s`: the slice before the event.
    """
    say = SAY.get(type(event))
    return tuple((name, in_unit(BUDGETS[name], seconds)) for name, seconds in say(s, event)) if say else ()


def _of_checkpoint(_: BudgetState, e: m.CheckpointCommitted) -> _Found:
    spans = e.spans
    # Waiting for the throttle is intended and does not count.
    whole = ("checkpoint", max(0.0, e.seconds - spans.throttled))
    if spans.throttled:
        return (whole,)
    parts = ("model", "optimizer", "strategy", "seeds", "write")
    taken = tuple((f"checkpoint_{part}", getattr(spans, part)) for part in parts)
    return (whole, *(one for one in taken if one[1]))


def _of_prepared(s: BudgetState, e: m.RollbackPrepared) -> _Found:
    is_fast = s.going is not None and s.going.tier is m.Tier.FAST
    return (("fast_prepare", e.seconds),) if is_fast else ()


def _of_rollback(s: BudgetState, e: m.RolledBack) -> _Found:
    going = s.going
    if going is None or e.by_start:
        return ()
    found: list[tuple[str, float]] = [("rollback_deadline", max(0, e.mono - going.begun_mono) / 1e9)]
    if going.tier is m.Tier.FAST:
        whole = going.prepare_s + e.commit_s + e.confirm_s
        found += [("fast_commit", e.commit_s), ("fast_confirm", e.confirm_s), ("fast_rollback", whole)]
    else:
        found.append(("full_rollback", e.commit_s + e.confirm_s))
        taken = ((f"full_{part}", getattr(e.spans, part)) for part in _PARTS_OF_FULL)
        found += [one for one in taken if one[1]]
    return (*found, *_of_reaction(s, e, m.Level.SEVERE))


def _of_heard(s: BudgetState, e: m.RollbackHeard) -> _Found:
    """The budget is the time until the full tier begins. Its duration has a budget of its own."""
    return _of_reaction(s, e, m.Level.MAJOR)


def _of_reaction(s: BudgetState, e: m.Event, level: m.Level) -> _Found:
    """Return how long the reaction to an emergency of this level took, if one waits for its reaction."""
    if s.raised is None or s.raised.level is not level:
        return ()
    return ((f"emergency_{level.value}", max(0, e.mono - s.raised.mono) / 1e9),)


def _of_rebuild(_: BudgetState, e: m.OptimizerRebuildCommitted) -> _Found:
    return (("optimizer_rebuild", e.elapsed_ms / 1e3),)


# The parts of a question that have a budget. The deadline is beside them: it counts by the clock.
_PARTS_OF_QUESTION: Final = (
    ("state_assembly", "assembly"),
    ("serialization", "encoding"),
    ("strategy_answer", "answer"),
    ("boundary_check", "check"),
)


def _of_answer(_: BudgetState, e: m.StrategyAnswered) -> _Found:
    spans, waits = e.spans, e.spans.waits or m.StrategyWaits()
    taken = ((name, getattr(spans, part), getattr(waits, part)) for name, part in _PARTS_OF_QUESTION)
    found = tuple((name, max(0.0, seconds - wait)) for name, seconds, wait in taken if seconds)
    return (*found, ("strategy_deadline", spans.answer)) if spans.answer else found


def waited(event: m.Event) -> Mapping[str, float]:
    """Return for how much of each duration of the event nothing ran, in the budget's unit; only what is known."""
    if not isinstance(event, m.StrategyAnswered) or event.spans.waits is None:
        return {}
    return {
        name: in_unit(BUDGETS[name], getattr(event.spans.waits, part))
        for name, part in _PARTS_OF_QUESTION
        if getattr(event.spans, part)
    }


def _of_end(s: BudgetState, e: m.TrainerDied | m.TrainerEnded) -> _Found:
    """The freeze through the shared page is faster than this. By now the process that could train is gone."""
    of_daemon = isinstance(e, m.TrainerDied) and e.reason is m.DeathReason.WITH_DAEMON
    return () if of_daemon else _of_reaction(s, e, m.Level.CRITICAL)


SAY: Final[dict[type[m.Event], Callable[[BudgetState, Any], _Found]]] = {
    m.CheckpointCommitted: _of_checkpoint,
    m.RollbackHeard: _of_heard,
    m.RollbackPrepared: _of_prepared,
    m.RolledBack: _of_rollback,
    m.OptimizerRebuildCommitted: _of_rebuild,
    m.TrainerDied: _of_end,
    m.TrainerEnded: _of_end,
    m.StrategyAnswered: _of_answer,
}


# -- the fold ----------------------------------------------------------------------------------------------------------


def _configured(s: BudgetState, e: m.RunStarted | m.ConfigChanged, _: m.Cause) -> BudgetState:
    policy = e.policy
    return replace(s, act=policy.budgets_act, limits=policy.budget_limits, breaker_rules=policy.breakers)


def _context(s: BudgetState, e: m.ExecutionContextRecorded, _: m.Cause) -> BudgetState:
    return replace(s, parameters=e.parameters)


def _measured(s: BudgetState, e: m.Event, _: m.Cause) -> BudgetState:
    """Each duration that the event says is one success or failure of its breaker."""
    for name, value in measured(s, e):
        s = _judged(s, name, exceeded=value > s.limit_of(name), mono=e.mono)
    return s


def _told(s: BudgetState, e: m.BudgetsMeasured, _: m.Cause) -> BudgetState:
    for one in e.tallies:
        if one.budget in BUDGETS:
            s = _judged(s, one.budget, exceeded=s.breaches(one) > 0, mono=e.mono)
    return s


def _answered(s: BudgetState, e: m.StrategyAnswered, at: m.Cause) -> BudgetState:
    return _misread(_measured(s, e, at), e)


def _unanswered(s: BudgetState, e: m.StrategyTimedOut, _: m.Cause) -> BudgetState:
    """A question without an answer is one failure, however soon that was known."""
    if e.reason is m.NoAnswer.OVERTAKEN:
        return s
    return _misread(_judged(s, "strategy_deadline", exceeded=True, mono=e.mono), e)


def _misread(s: BudgetState, e: m.StrategyAnswered | m.StrategyTimedOut) -> BudgetState:
    return _judged(s, "serialization", exceeded=True, mono=e.mono) if e.misread else s


def _set(s: BudgetState, e: m.BreakerSet, _: m.Cause) -> BudgetState:
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


def _begun(s: BudgetState, e: m.RollbackBegun, _: m.Cause) -> BudgetState:
    return replace(s, going=RollbackSince(e.tier, e.mono))


def _prepared(s: BudgetState, e: m.RollbackPrepared, at: m.Cause) -> BudgetState:
    s = _measured(s, e, at)
    return s if s.going is None else replace(s, going=replace(s.going, prepare_s=e.seconds))


def _escalated(s: BudgetState, _: m.RollbackEscalated, __: m.Cause) -> BudgetState:
    return s if s.going is None else replace(s, going=RollbackSince(m.Tier.FULL, s.going.begun_mono))


def _given_up(s: BudgetState, _: m.Event, __: m.Cause) -> BudgetState:
    return replace(s, going=None, raised=None)


def _frozen(s: BudgetState, _: m.Event, __: m.Cause) -> BudgetState:
    is_answer = s.raised is not None and s.raised.level is m.Level.CRITICAL
    return replace(s, going=None, raised=s.raised if is_answer else None)


def _ended(s: BudgetState, e: m.TrainerDied | m.TrainerEnded, at: m.Cause) -> BudgetState:
    if s.raised is None or s.raised.level is not m.Level.CRITICAL:
        return s
    return replace(_measured(s, e, at), raised=None)


def _raised(s: BudgetState, e: m.EmergencyRaised, _: m.Cause) -> BudgetState:
    return s if e.level is m.Level.MINOR else replace(s, raised=EmergencySince(e.level, e.mono))


def _no_emergency(s: BudgetState, _: m.Event, __: m.Cause) -> BudgetState:
    return s if s.raised is None else replace(s, raised=None)


def _careful(s: BudgetState, e: m.ConservativeModeEntered, _: m.Cause) -> BudgetState:
    return replace(s, slow_boundaries=0, soft_factor=e.soft_factor)


def _normal(s: BudgetState, _: m.ConservativeModeLeft, __: m.Cause) -> BudgetState:
    return replace(s, slow_boundaries=0, soft_factor=1.0)


def _pressed(s: BudgetState, e: m.MemoryPressed, _: m.Cause) -> BudgetState:
    return replace(s, memory=Pressure(e.budget, e.percent, e.limit, e.wall))


def _relieved(s: BudgetState, _: m.MemoryRelieved, __: m.Cause) -> BudgetState:
    return replace(s, memory=None)


OVERRUNS: Final[ApplyTable] = {
    m.RunStarted: _configured,
    m.ConfigChanged: _configured,
    m.RunFrozen: _frozen,
    m.RunResumed: _no_emergency,
    m.TrainerStarted: _no_emergency,
    m.TrainerDied: _ended,
    m.TrainerEnded: _ended,
    m.ExecutionContextRecorded: _context,
    m.BudgetsMeasured: _told,
    m.MemoryPressed: _pressed,
    m.MemoryRelieved: _relieved,
    m.CheckpointCommitted: _measured,
    m.OptimizerRebuildCommitted: _measured,
    m.RollbackBegun: _begun,
    m.RollbackHeard: _measured,
    m.RollbackPrepared: _prepared,
    m.RollbackEscalated: _escalated,
    m.RolledBack: _measured,
    m.RollbackAborted: _given_up,
    m.StrategyAnswered: _answered,
    m.StrategyTimedOut: _unanswered,
    m.BreakerSet: _set,
    m.EmergencyRaised: _raised,
    m.EmergencyCleared: _given_up,
    m.ConservativeModeEntered: _careful,
    m.ConservativeModeLeft: _normal,
}
