"""A run that the default policy grows: killed and rolled back, it decides the same and ends with the same bits."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests import order_events
from tests.campaign.grown import BATCH, CONFIG, EPOCHS, network, samples
from tests.library.inside import ordered, state_of
from tests.library.seeds import IN_STEP, hashed_at_once
from tests.recorded import Stop, dies_at, events_of, of, pieces, sound
from tolariad import Tolaria
from tolariad.core import messages as m
from tolariad.core.calc.seeds.stages import Stage
from tolariad.trainer.checkpoints.files import STATE_FILE

STEPS = 4  # of an epoch
PATIENT = {"rollback": {"fast_path_timeout_ms": 60_000, "full_path_timeout_s": 60.0}}


class Hooks:
    """Calls `also(step)` after each step. `run` is the run that trains."""

    def __init__(self, also=lambda step: None):
        self.also = also
        self.run: Tolaria | None = None

    def on_step_end(self, model, step):
        self.also(step)


def train(run_dir, task, **more):
    """Train the network that the default policy grows; return the events."""
    task.run = Tolaria({"tolaria": {**CONFIG, **PATIENT, **more}}, run_dir=run_dir)
    loaders = (DataLoader(TensorDataset(*samples(*of_set)), BATCH) for of_set in ((96, 1), (48, 2)))
    torch.manual_seed(3)
    assert task.run.train(network(), *loaders, EPOCHS, task=task).phase == "completed"
    return events_of(run_dir)


# The run orders these when it hears of the move before, so the machine decides at which step they act.
FOLLOWING = {Stage.EMBARGOED, Stage.RESETTING, Stage.DORMANT}


def moves(events):
    """Return the moves of seeds, each with its first update if it was decided."""
    return [
        (
            one.order.slot,
            one.order.stage,
            one.applied_before_step * (one.order.stage not in FOLLOWING),
            one.order.number,
        )
        for one in of(events, order_events.acted(m.MoveSeed))
    ]


def answers(events):
    """Return what was answered after which epoch."""
    return [
        (one.epoch, [(each.kind, each.id, each.order) for each in one.commands])
        for one in of(events, m.StrategyAnswered)
    ]


def decided(events):
    """Return what was answered after which epoch, without the ids, which name the run."""
    return [(epoch, [(kind, order) for kind, _, order in commands]) for epoch, commands in answers(events)]


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The folder and the events of the run that nothing disturbed."""
    run_dir = tmp_path_factory.mktemp("calm") / "run"
    events = train(run_dir, Hooks())
    reached = {stage for _, stage, *_ in moves(events)}
    assert {Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.FOSSILIZED} <= reached
    return run_dir, events


@pytest.mark.torture
@pytest.mark.parametrize("at", range(2, 4 * EPOCHS, 5))
def test_a_grown_run_that_died_decides_the_same_and_ends_with_the_same_bits(tmp_path, calm, at):
    """Its moves and the policy's state are repeated; no epoch is asked about twice."""
    die, seldom = dies_at(at), {"checkpoint_interval_epochs": 6}
    with pytest.raises(Stop):
        train(tmp_path / "run", Hooks(die), **seldom)
    events = train(tmp_path / "run", Hooks(die), **seldom)

    assert moves(events) == moves(calm[1])
    assert decided(events) == decided(calm[1])
    assert pieces(tmp_path / "run") == pieces(calm[0])
    sound(tmp_path / "run")
    assert [one.epoch for one in of(events, m.StrategyAsked)] == list(range(1, EPOCHS))


def back_over(tier, first):
    """Return hooks that order one rollback in this tier, after update `first`, to a state of some steps before it.

    A rollback to an epoch's end does not ask again there. So a snapshot of one is no target; checkpoints are of nothing
    else, and at the end that is taken here nothing was decided.
    """

    def back(step):
        state, fast = state_of(task.run), tier is m.Tier.FAST
        held = state.snapshots.promoted if fast else state.checkpoints.catalogue
        fits = [one for one in held if first - 10 < one.step < first - (1 if fast else 4)]
        fits = [one for one in fits if one.step % STEPS or not fast]
        if step >= first and fits and not (state.rollbacks.done or state.rollbacks.open or state.rollbacks.asked):
            assert ordered(task.run, m.Rollback(to=fits[-1].id, tier=tier))

    task = Hooks(back)
    return task


@pytest.mark.parametrize("tier", [m.Tier.FAST, pytest.param(m.Tier.FULL, marks=pytest.mark.torture)])
def test_a_rollback_takes_the_policy_back_with_its_seeds(tmp_path, calm, monkeypatch, tier):
    """It votes, its state is the target's, and it decides again what it decided in the run that never went back.

    The rollback goes back over the beginning of the first blending.
    """
    hashed_at_once(monkeypatch.setattr)
    first = next(before for _, stage, before, _ in moves(calm[1]) if stage is Stage.BLENDING)
    events = train(tmp_path / "run", back_over(tier, first), **(IN_STEP if tier is m.Tier.FAST else {}))
    (done,) = of(events, m.RolledBack)

    assert [one.vote for one in of(events, m.StrategyVoted)] == [m.Vote.AGREED]
    assert of(events, m.RollbackEscalated) == []
    assert done.step < first
    assert dict(decided(events)) == dict(decided(calm[1]))
    kept = [
        [one.order.state for one in of(each, order_events.acted(m.KeepStrategyState))][-1] for each in (events, calm[1])
    ]
    assert kept[0] == kept[1]
    # A command that is given again is another one: its id names the branch.
    given = [id_ for _, commands in answers(events) for _, id_, _ in commands]
    assert len(set(given)) == len(given)
    assert of(events, m.CommandRefused) == of(calm[1], m.CommandRefused) == []
    assert list(dict.fromkeys(moves(events))) == moves(calm[1])
    assert len(moves(events)) == len(moves(calm[1])) + 1
    found, expected = pieces(tmp_path / "run"), pieces(calm[0])
    if tier is m.Tier.FULL:
        # The target is of an epoch's end, before the policy's state of that epoch was given: one order less acted.
        assert found.pop(STATE_FILE) != expected.pop(STATE_FILE)
    assert found == expected
