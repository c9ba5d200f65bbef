"""A second kind of boundary order, which exists in tests only: it turns a knob to a value."""

from __future__ import annotations

from typing import ClassVar

import pytest

from tests.core.rated import RatedTrainer, RatedWorld
from tests.core.reactions.checked import checked_rule
from tolariad.core import messages as m
from tolariad.core.decision import Decision
from tolariad.core.engine import Engine, Row, on
from tolariad.core.rules import boundary as boundary_rules
from tolariad.core.rules.table import reactions
from tolariad.core.state import boundary
from tolariad.core.state import run_state as state
from tolariad.core.state.run_state import apply

KNOBS = ("left", "right")


class Turn(m.BoundaryOrder, frozen=True, kw_only=True):
    """To the trainer: turn the knob."""

    knob: str
    to: int


class TurnOrdered(m.BoundaryOrderGiven, frozen=True, kw_only=True):
    """A turn was ordered."""

    KIND: ClassVar = Turn

    knob: str
    to: int


class Turned(m.BoundaryOrderActed, frozen=True, kw_only=True):
    """The knob is turned."""

    KIND: ClassVar = Turn

    knob: str
    to: int


class TurnAborted(m.BoundaryOrderAborted, frozen=True, kw_only=True):
    """The knob was not turned."""

    why: str


def turned(state, report, _):
    """The kind's own reaction: what the answer to its order becomes."""
    waiting = state.boundary.find(report.order, Turn)
    if waiting is None:
        return None
    at, order = waiting
    end = {"cause": at.seq, "root": at.root}
    if report.refused:
        return Decision((TurnAborted(why=report.refused, **end),))
    number = state.boundary.acted + 1
    before = report.applied_before_step
    return Decision((Turned(applied_before_step=before, number=number, knob=order.knob, to=order.to, **end),))


def _with_the_kind(rows):
    for row in rows:
        if row.kind is m.BoundaryOrderReport:
            yield Row(row.kind, (*row.rules, turned), row.makes | {Turned, TurnAborted})
        else:
            yield row
    yield on(TurnOrdered, boundary_rules.send)


@pytest.fixture
def turns(monkeypatch):
    """Add the kind to core: its events by their bases, its reaction, and that it is sent."""
    for kind, like in ((TurnOrdered, m.RateOrdered), (Turned, m.RateChanged), (TurnAborted, m.RateOrderAborted)):
        monkeypatch.setitem(boundary.APPLY, kind, boundary.APPLY[like])
    monkeypatch.setattr(state, "FOLDS", state._by_event())
    rows = [
        Row(row.kind, tuple(checked_rule(row, rule) for rule in row.rules), row.makes)
        for row in _with_the_kind(reactions.TABLE)
    ]
    monkeypatch.setattr(reactions.ENGINE, "_rules", Engine(rows, apply)._rules)


class TurningTrainer(RatedTrainer):
    """`knobs` is a part of its state: each checkpoint holds it, `saved_knobs` by the checkpoint's name."""

    def __init__(self, *given, saved_knobs, **more):
        super().__init__(*given, **more)
        self.knobs, self.saved_knobs = {}, saved_knobs

    def carry_out(self, order):
        if not isinstance(order, Turn):
            return super().carry_out(order)
        if order.knob not in KNOBS:
            return f"there is no knob {order.knob!r}"
        self.knobs = {**self.knobs, order.knob: order.to}
        self.applied += 1
        return ""

    def repeat(self, order):
        if isinstance(order, Turn):
            self.knobs = {**self.knobs, order.knob: order.to}
        else:
            super().repeat(order)

    def _begin(self, order):
        if order.checkpoint is not None:
            self.knobs = self.saved_knobs.get(order.checkpoint.id, {})
        super()._begin(order)

    def _roll_back(self, to):
        self.knobs = self.saved_knobs[to.id]
        super()._roll_back(to)

    def _written(self, id_):
        self.saved_knobs[id_] = self.knobs
        return super()._written(id_)


class TurningWorld(RatedWorld):
    """A world whose trainers have knobs; needs the fixture `turns`."""

    def __init__(self, seed, **policy):
        self.saved_knobs = {}
        super().__init__(seed, **policy)

    def new_trainer(self, incarnation):
        given = incarnation, self.environment, self.accuracy, self.broken
        return TurningTrainer(*given, saved=self.saved, owing=self.owing, saved_knobs=self.saved_knobs)

    def turn(self, knob, to):
        """Order a turn; the event is recorded as a kind's own rule would."""
        self.give(m.Scheduled(recorded=TurnOrdered(knob=knob, to=to)))
        return self.state.seq
