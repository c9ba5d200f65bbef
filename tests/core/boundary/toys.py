"""A kind of boundary order that exists in tests only: it turns a knob to a value.

Core needs nothing for it: it is given, waits, acts and ends as any other.
"""

from __future__ import annotations

from tests.core.rated import RatedTrainer, RatedWorld
from tolariad.core import messages as m

KNOBS = ("left", "right")


class Turn(m.BoundaryOrder, frozen=True, kw_only=True):
    """To the trainer: turn the knob."""

    knob: str
    to: int


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
    """A world whose trainers have knobs."""

    def __init__(self, seed, **policy):
        self.saved_knobs = {}
        super().__init__(seed, **policy)

    def new_trainer(self, incarnation):
        given = incarnation, self.environment, self.accuracy, self.broken
        return TurningTrainer(*given, saved=self.saved, owing=self.owing, saved_knobs=self.saved_knobs)

    def turn(self, knob, to):
        """Order a turn; the event is recorded as a kind's own rule would."""
        self.give(m.Scheduled(recorded=m.OrderGiven(order=Turn(knob=knob, to=to))))
        return self.state.seq
