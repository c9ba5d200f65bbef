"""The engine of reactions, with a toy state: the order of work, what rules see, stamps, and where it ends."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core.decision import Accepted, Decision
from tolariad.core.engine import DEPTH_MAX, At, Engine, TooDeepError, on

NOW = m.Now(wall=7, mono=9)


class Began(m.Event, frozen=True, kw_only=True):
    word: str = ""


class Grew(m.Event, frozen=True, kw_only=True):
    word: str = ""


class Ended(m.Event, frozen=True, kw_only=True):
    word: str = ""


class Told(m.Effect, frozen=True, kw_only=True):
    word: str = ""


class Given(msgspec.Struct, frozen=True):
    word: str = ""


class Toy(msgspec.Struct, frozen=True):
    """Every word that was recorded."""

    seq: int = 0
    words: tuple[str, ...] = ()


def apply(state: Toy, event: m.Event) -> Toy:
    return replace(state, seq=state.seq + 1, words=(*state.words, event.word))


def makes(*events, effects=(), answer=None):
    """A rule that always makes this."""
    return lambda *_: Decision(events, effects, answer)


def decided(*rows, state=None):
    return Engine(rows, apply).decide(state or Toy(), Given(), NOW)


def words(found):
    return [event.word for event in found.events]


def test_all_facts_are_recorded_before_anything_reacts():
    """Also those of the second rule of the input."""
    found = decided(
        on(Given, makes(Began(word="a")), makes(Grew(word="b"))),
        on(Began, makes(Ended(word="of a"))),
        on(Grew, makes(Ended(word="of b"))),
    )
    assert words(found) == ["a", "b", "of a", "of b"]


def test_consequences_come_before_the_next_rule_of_the_same_event():
    """Depth first: the last rule of a row sees all that follows from those before it."""
    seen = []

    def last(state, event, at):
        seen.append(state.words)

    found = decided(
        on(Given, makes(Began(word="a"))),
        on(Began, makes(Grew(word="b")), last),
        on(Grew, makes(Ended(word="c"))),
    )
    assert words(found) == ["a", "b", "c"]
    assert seen == [("a", "b", "c")]


def test_a_block_is_whole_before_its_first_event_is_reacted_to():
    """The state has the whole block; `at.was` is the state before the one event."""
    seen = []

    def rule(state, event, at):
        seen.append((event.word, at.was.words, state.words, at.seq))

    decided(on(Given, makes(Began(word="a"), Began(word="b"))), on(Began, rule))
    assert seen == [("a", (), ("a", "b"), 1), ("b", ("a",), ("a", "b"), 2)]


def test_an_event_is_caused_by_the_one_that_it_reacts_to():
    """A fact by the first fact, unless it names another; the root goes along."""
    found = decided(
        on(Given, makes(Began(word="a"), Grew(word="b", cause=3, root=2)), makes(Began(word="c"))),
        on(Grew, makes(Ended(word="d"), Ended(word="e"))),
        state=Toy(seq=10),
    )
    assert [(event.word, event.cause, event.root) for event in found.events] == [
        ("a", 0, 11),
        ("b", 3, 2),
        ("c", 11, 11),
        ("d", 12, 2),
        ("e", 12, 2),
    ]
    assert {(event.wall, event.mono) for event in found.events} == {(7, 9)}


def test_an_effect_is_caused_by_the_first_event_beside_it_else_by_the_one_reacted_to():
    """So an order to the trainer names the event that it belongs to."""
    found = decided(
        on(Given, makes(Began(), effects=(Told(word="beside"),)), makes(effects=(Told(word="of the input"),))),
        on(
            Began, makes(Grew(), effects=(Told(word="beside too"),)), makes(effects=(Told(word="alone"), Told(cause=5)))
        ),
        state=Toy(seq=10),
    )
    assert [(one.word, one.cause) for one in found.effects] == [
        ("beside", 11), ("of the input", 11), ("beside too", 12), ("alone", 11), ("", 5),
    ]  # fmt: skip


def test_an_accepted_order_is_answered_with_the_number_of_its_own_event():
    """A rule leaves it 0; the first answer stands."""
    found = decided(on(Given, makes(Began()), makes(Grew(), answer=Accepted()), makes(Ended(), answer=Accepted(77))))
    assert found.answer == Accepted(2)


def test_events_that_lead_to_each_other_are_a_defect_and_not_an_endless_turn():
    """With the chain in the message."""
    with pytest.raises(TooDeepError, match=f"{DEPTH_MAX} deep: .*Grew, Grew"):
        decided(on(Given, makes(Grew())), on(Grew, makes(Grew())))


def test_one_type_has_one_row():
    """Two rows would hide each other."""
    with pytest.raises(ValueError, match="Grew has two rows"):
        Engine([on(Grew, makes()), on(Grew, makes())], apply)


def test_the_direct_path_is_what_the_table_makes_of_the_one_fact():
    """The same events, stamps, effects and state, whichever rule of the row is the first to make something."""
    fact = Began(word="a", wall=7, mono=9, root=1)
    nothing = lambda *_: None  # noqa: E731
    some, more = makes(Grew(word="b"), effects=(Told(),)), makes(Ended(word="d"))
    for rules in ((), (nothing,), (some,), (nothing, some, more), (some, nothing), (more, some)):
        engine = Engine([on(Given, makes(fact)), on(Began, *rules), on(Grew, makes(Ended(word="c")))], apply)
        assert engine.after(Toy(), fact, NOW) == engine.decide(Toy(), Given(), NOW)


def test_a_rule_sees_the_time_of_the_turn():
    """Nothing in core reads a clock."""
    seen = []
    decided(on(Given, lambda _, __, at: seen.append(at)))
    assert seen == [At(NOW, Toy())]
