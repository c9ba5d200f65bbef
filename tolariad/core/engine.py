"""Decide by reactions: run the rules of an input, then offer every recorded event to the rules of its type.

A *rule* is a pure function `(state, what, at) -> Decision | None`. The rules of an input record facts: first all facts,
in declared order. Then each fact is offered to the rules of its type, depth first. The events that a rule records are
offered before the next rule of the same event runs. So a later rule sees every consequence of an earlier one. The
events that one rule returns are one block: all of them are recorded before any rule reacts to the first.

Promises: every event gets its number, time, cause and root before it is folded. The cause of an event is the event that
its rule reacted to, unless the rule names another. The engine is generic over the state and takes `apply` as an
argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core.calc.units import Seq
from tolariad.core.decision import Accepted, Answer, Decision

# The deepest chain in recorded decisions has four events. The declared graph has no cycle, so only a defect gets here.
DEPTH_MAX: Final = 32


class Numbered(Protocol):
    """A state that counts the events folded into it."""

    @property
    def seq(self) -> Seq:
        """Return the number of the last event."""


S = TypeVar("S", bound=Numbered)
S_co = TypeVar("S_co", covariant=True)
W = TypeVar("W")


class At(msgspec.Struct, Generic[S_co], frozen=True):
    """The context of a rule, in addition to the state and what it reacts to.

    `was`: the state before the event (for an input: before the input). `seq`, `root`: those of the event; 0 for an
    input.
    """

    now: m.Now
    was: S_co
    seq: Seq = 0
    root: Seq = 0


_Rules: TypeAlias = tuple[Callable[[S, Any, At[S]], Decision | None], ...]


class Row(msgspec.Struct, Generic[S], frozen=True):
    """The rules of one input, report or event type, in order, and every event type that they may record."""

    kind: type
    rules: _Rules[S]
    makes: frozenset[type[m.Event]]


def on(kind: type[W], *rules: Callable[[S, W, At[S]], Decision | None], makes: Iterable[type[m.Event]] = ()) -> Row[S]:
    """Declare the rules of `kind`. mypy rejects one that takes another type, or reads a slice that the state lacks."""
    return Row(kind, rules, frozenset(makes))


class Decided(msgspec.Struct, Generic[S_co], frozen=True):
    """The consequences of one input: the state after it, stamped events, effects, and an answer to the caller."""

    state: S_co
    events: tuple[m.Event, ...] = ()
    effects: tuple[m.Effect, ...] = ()
    answer: Answer | None = None


class TooDeepError(RuntimeError):
    """Events lead to events without end: the table has a defect."""


class Engine(Generic[S]):
    """A table of rows, and the fold for its events."""

    def __init__(self, rows: Iterable[Row[S]], apply: Callable[[S, m.Event], S]) -> None:
        """Raises ValueError if two rows have the same type."""
        self._apply = apply
        self._rules: dict[type, _Rules[S]] = {}
        for row in rows:
            if row.kind in self._rules:
                raise ValueError(f"{row.kind.__name__} has two rows")
            self._rules[row.kind] = row.rules

    def decide(self, state: S, given: object, now: m.Now) -> Decided[S]:
        """Run the rules of an input or report, and everything that follows. Raises TooDeepError."""
        turn = _Turn(self._rules, self._apply, state, now)
        turn.record_facts(given)
        return Decided(turn.state, tuple(turn.events), tuple(turn.effects), turn.answer)

    def after(self, state: S, event: m.Event, now: m.Now) -> Decided[S]:
        """Run the rules of one event that is already stamped. For steps: in most of them nothing follows."""
        after = self._apply(state, event)
        at = At(now, state, after.seq, event.root)
        rules = self._rules.get(type(event), ())
        for number, rule in enumerate(rules, 1):
            if (decision := rule(after, event, at)) is not None:
                turn = _Turn(self._rules, self._apply, after, now)
                turn.events.append(event)
                turn.offer(turn.record(decision, at), 1)
                turn.ask(rules[number:], event, at, 0)
                return Decided(turn.state, tuple(turn.events), tuple(turn.effects), turn.answer)
        return Decided(after, (event,))


class _Turn(Generic[S]):
    """The state of one decision in progress."""

    def __init__(self, rules: dict[type, _Rules[S]], apply: Callable[[S, m.Event], S], state: S, now: m.Now) -> None:
        self._rules = rules
        self._apply = apply
        self._now = now
        self._first: Seq = 0
        self._first_root: Seq = 0
        self.state = state
        self.events: list[m.Event] = []
        self.effects: list[m.Effect] = []
        self.answer: Answer | None = None

    def record_facts(self, given: object) -> None:
        """Record all facts of an input, then offer them in order."""
        at = At(self._now, self.state)
        made: list[tuple[m.Event, At[S]]] = []
        for rule in self._rules.get(type(given), ()):
            if (decision := rule(self.state, given, at)) is not None:
                made += self.record(decision, at)
        self.offer(made, 0)

    def offer(self, made: list[tuple[m.Event, At[S]]], depth: int) -> None:
        """Let the rules of each event react to it."""
        if depth > DEPTH_MAX:
            chain = ", ".join(type(event).__name__ for event in self.events[-DEPTH_MAX:])
            raise TooDeepError(f"events lead to events {DEPTH_MAX} deep: {chain}")
        for event, at in made:
            self.ask(self._rules.get(type(event), ()), event, at, depth)

    def ask(self, rules: _Rules[S], event: m.Event, at: At[S], depth: int) -> None:
        """Run some rules on one event. Each sees everything that follows from the ones before it."""
        for rule in rules:
            if (decision := rule(self.state, event, at)) is not None:
                self.offer(self.record(decision, at), depth + 1)

    def record(self, decision: Decision, at: At[S]) -> list[tuple[m.Event, At[S]]]:
        """Number, stamp and fold one block. Return its events, each with the context for its rules."""
        made: list[tuple[m.Event, At[S]]] = []
        now, first = self._now, self.state.seq + 1
        for event in decision.events:
            was, seq = self.state, self.state.seq + 1
            root = event.root or at.root or self._first_root or seq
            stamped = replace(
                event, wall=now.wall, mono=now.mono, cause=event.cause or at.seq or self._first, root=root
            )
            if not self._first:
                self._first, self._first_root = seq, root
            self.state = self._apply(was, stamped)
            self.events.append(stamped)
            made.append((stamped, At(now, was, seq, root)))
        if decision.effects:
            cause = first if made else at.seq or self._first
            self.effects += (one if one.cause else replace(one, cause=cause) for one in decision.effects)
        if decision.answer is not None and self.answer is None:
            self.answer = Accepted(first) if decision.answer == Accepted() else decision.answer
        return made
