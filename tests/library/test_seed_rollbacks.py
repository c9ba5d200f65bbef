"""Rollbacks to either side of a germination, a cull and a fossilisation, in both tiers, end as a run without them."""

from __future__ import annotations

import pytest

from tests import order_events
from tests.library.inside import ordered, state_of, written_at_once
from tests.library.seeds import IN_STEP, PLAN, Gardener, Steadfast, hashed_at_once, line_of, train
from tests.recorded import of, pieces, sound
from tolariad.core import messages as m
from tolariad.core.calc.seeds.stages import Stage
from tolariad.core.state.run_state import RunState, fold

# One more than the plan needs: a checkpoint takes its time.
EPOCHS = 4
OPTIONS = {
    m.Tier.FULL: {"ema": {"decay": 0.9}, "rollback": {"fast_path_enabled": False}},
    m.Tier.FAST: {"ema": {"decay": 0.9}, **IN_STEP},
}
# Late enough for a snapshot before it.
LATE = {9: PLAN[2], 10: PLAN[3], 12: PLAN[4], 13: PLAN[5]}
# The move, the first update with it in an undisturbed run, and the plan.
MOVES = {
    "germination": ("b", Stage.GERMINATED, 13, LATE),
    "cull": ("b", Stage.CULLED, 11, PLAN),
    "fossil": ("a", Stage.FOSSILIZED, 19, PLAN),
}
SHORT = [("full", "germination", "before"), ("fast", "fossil", "before")]
ALL = [(tier, move, side) for tier in ("full", "fast") for move in MOVES for side in ("before", "after")]


class Back:
    """Orders one rollback to a state well before the move, or to one with it, as soon as both are there."""

    def __init__(self, tier, move, side):
        self.tier, self.side, self.is_done = tier, side, False
        self.slot, self.stage, first, self.plan = MOVES[move]
        self.target = first - 2 if side == "before" else first + 1
        self.task = Steadfast(self.plan, also=self)

    def __call__(self, step):
        fast = self.tier is m.Tier.FAST
        if not fast and step == self.target and not self.is_done:
            assert ordered(self.task.run, m.Checkpoint())
        state = state_of(self.task.run)
        moved = any((one.seed.slot, one.seed.stage) == (self.slot, self.stage) for one in state.seeds.moves)
        if self.is_done or not moved or step < self.target + 2:
            return
        if found := self.held(state.snapshots.promoted if fast else state.checkpoints.catalogue):
            self.is_done = True
            assert ordered(self.task.run, m.Rollback(to=found, tier=self.tier))

    def held(self, copies):
        """Return the newest copy that is on the right side, or ""."""
        if self.side == "before":
            fits = [one for one in copies if 0 < one.step <= self.target]
        else:
            fits = [one for one in copies if one.step >= self.target - 1]
        return max(fits, key=lambda one: one.step).id if fits else ""


@pytest.mark.parametrize(
    ("tier", "move", "side"),
    [*SHORT, *(pytest.param(*one, marks=pytest.mark.torture) for one in ALL if one not in SHORT)],
)
def test_a_rollback_to_either_side_of_a_move_ends_as_a_run_without_it(tmp_path, monkeypatch, tier, move, side):
    """Before it the move is ordered again, after it the state holds it. Either way every bit is that of the line."""
    hashed_at_once(monkeypatch.setattr)
    written_at_once(monkeypatch.setattr)
    run_dir, back = tmp_path / "run", Back(m.Tier(tier), move, side)
    options = OPTIONS[m.Tier(tier)]
    train(run_dir, back.task, epochs=EPOCHS, **options)
    events = sound(run_dir)
    (begun,), (done,) = of(events, m.RollbackBegun), of(events, m.RolledBack)
    made = [
        one
        for one in of(events, order_events.acted(m.MoveSeed))
        if (one.order.slot, one.order.stage) == (back.slot, back.stage)
    ]
    train(tmp_path / "calm", Gardener(line_of(fold(RunState(), events), back.plan)), epochs=EPOCHS, **options)

    assert begun.tier is m.Tier(tier)
    assert of(events, m.RollbackEscalated) == []
    assert len(made) == (2 if side == "before" else 1)
    assert (done.orders >= made[0].number) == (side == "after")
    assert pieces(run_dir) == pieces(tmp_path / "calm")
