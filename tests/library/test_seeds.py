"""Seeds in a recorded run: it resumes and rolls back across their moves, to the bit of the undisturbed run."""

from __future__ import annotations

import functools

import pytest
import torch
from safetensors import safe_open
from torch.nn import functional
from torch.utils.data import DataLoader

from tests import order_events
from tests.library.inside import ordered, state_of, written_at_once
from tests.library.live_run import tolaria
from tests.library.seeds import IN_STEP, PLAN, QUICK, Gardener, given_in, hashed_at_once, made, network, train
from tests.library.small import bits, data
from tests.recorded import Stop, dies_at, events_of, of, pieces, sound
from tests.waiting import wait_for
from tolariad.core import messages as m
from tolariad.core.calc.learning_rate.schedule import LRPolicy
from tolariad.core.calc.seeds.stages import Learning, Stage
from tolariad.core.state.run_state import RunState, fold
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.seeds import regrow

LEARNS_ON = {"evaluate": "train", "fossil": "train"}
FULL = {"rollback": {"fast_path_enabled": False}}
VARIANTS = {
    "plain": FULL,
    "average": {**FULL, "ema": {"decay": 0.9}},
    # Two in which seeds learn on: as a fossil, and while they are judged as well.
    "accumulate": {**FULL, "accumulate": 2, "epochs": 6, "seeds": {**QUICK, "fossil": "train"}},
    "own optimizer": {
        **FULL,
        "seeds": {**QUICK, "optimizer": {"name": "sgd", "momentum": 0.9}, "lr": 0.05, **LEARNS_ON},
    },
    "in memory": {"ema": {"decay": 0.9}, **IN_STEP},
}
# Of the moves that the plan orders: slot, stage, first update.
MOVES = [
    ("a", Stage.GERMINATED, 3),
    ("a", Stage.TRAINING, 4),
    ("b", Stage.GERMINATED, 5),
    ("b", Stage.TRAINING, 6),
    ("a", Stage.BLENDING, 7),
    ("b", Stage.CULLED, 11),
    ("a", Stage.SHADOWING, 14),
    ("a", Stage.PROBATIONARY, 16),
    ("a", Stage.FOSSILIZED, 19),
]
FREEING = (Stage.EMBARGOED, Stage.RESETTING, Stage.DORMANT)


def moves(run_dir):
    found = of(events_of(run_dir), order_events.acted(m.MoveSeed))
    return [
        (one.order.slot, one.order.stage, one.applied_before_step) for one in found if one.order.stage not in FREEING
    ]


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The last checkpoint of each variant's run that nothing disturbed."""

    @functools.cache
    def calm_of(name):
        run_dir = tmp_path_factory.mktemp("calm") / "run"
        train(run_dir, Gardener(), **VARIANTS[name])
        assert moves(run_dir) == MOVES
        return pieces(run_dir)

    return calm_of


def test_a_seed_lives_from_germination_to_fossil_and_another_is_culled(tmp_path):
    """Each order acts before the next update. The kernel knows rates, slots and shapes as the trainer has them.

    From the stage in which it is judged on, no bit of the seed moves. Its rate rises from the germination on.
    """
    seen, model = {}, network()
    task = Gardener(also=lambda step: seen.update({step: model[3].seed and bits(model[3].seed)}))
    train(tmp_path / "run", task, model=model, **VARIANTS["average"])
    events = sound(tmp_path / "run")
    state = fold(RunState(), events)

    assert moves(tmp_path / "run") == MOVES
    assert of(events, order_events.aborted(m.MoveSeed)) == []
    assert [one.epoch for one in of(events, m.SeedsMeasured)] == [1, 2, 3]
    assert [step for step in range(4, 25) if seen[step] != seen[step - 1]] == list(range(4, 16))
    assert seen[24] == bits(model[3].seed)
    schedule = state.rates.group("seed.a").schedule
    assert (schedule.policy, schedule.start, schedule.warmup_steps) == (LRPolicy.SEED_WARMUP, 2, 8)
    assert state.seeds.seed("a").learning is Learning.FROZEN
    assert model[3].stage is Stage.FOSSILIZED
    assert model[6].stage is Stage.DORMANT
    assert model[6].seed is None
    file = tmp_path / "model.safetensors"
    assert "include the seeds in a" in tolaria("export-weights", tmp_path / "run", "-o", file)
    with safe_open(file, "pt") as opened:
        metadata, tensors = opened.metadata(), {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    again = network()
    regrow(again, metadata["seeds"])
    again.load_state_dict(tensors)
    assert bits(again) == bits(model)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("plain", 1),
        ("average", 7),
        ("plain", 8),
        ("average", 9),
        ("accumulate", 11),
        ("plain", 12),
        ("own optimizer", 17),
        ("average", 20),
        ("in memory", 22),
    ],
)
def test_a_run_that_died_ends_as_one_that_did_not(tmp_path, calm, name, at):
    """The newest checkpoint holds some of the moves; the others are made again at their steps."""
    run_dir = tmp_path / "run"

    with pytest.raises(Stop):
        train(run_dir, Gardener(also=dies_at(at)), **VARIANTS[name])
    train(run_dir, Gardener(given=given_in(run_dir)), **VARIANTS[name])
    sound(run_dir)

    assert pieces(run_dir) == calm(name)
    assert moves(run_dir) == MOVES


def test_a_gate_that_fails_changes_no_bit(tmp_path):
    """The trainer refuses the move with the gate's sentence; the run ends as one in which nobody ordered it."""
    strict = {**FULL, "seeds": {**QUICK, "gates": {"min_steps": 1000}}}
    plan = {step: PLAN[step] for step in (2, 3)}
    train(tmp_path / "calm", Gardener(plan), **strict)
    train(tmp_path / "run", Gardener({**plan, 6: PLAN[6]}), **strict)

    (aborted,) = of(events_of(tmp_path / "run"), order_events.aborted(m.MoveSeed))
    assert "G1" in aborted.why
    assert moves(tmp_path / "run") == MOVES[:2]
    assert pieces(tmp_path / "run") == pieces(tmp_path / "calm")


@pytest.mark.parametrize("dies", [None, 12, 20])
def test_a_rollback_over_a_cull_needs_no_new_trainer(tmp_path, calm, monkeypatch, dies):
    """The culled seed is back in its slot, and the moves after the target are ordered again."""
    written_at_once(monkeypatch.setattr)
    run_dir, gone_back = tmp_path / "run", []
    task = Gardener()

    def back(step):
        if step == 17 and not gone_back:
            wait_for(lambda: has_checkpoint(task, 8))
            gone_back.append(step)
            assert task.run.rollback(1)
        elif gone_back and step == dies:
            raise Stop

    task.also = back
    if dies is None:
        model = train(run_dir, task, **VARIANTS["average"])
        assert model[6].seed is None
    else:
        with pytest.raises(Stop):
            train(run_dir, task, **VARIANTS["average"])
        # Three orders were given on the branch that was left, and again.
        train(run_dir, Gardener(given=given_in(run_dir) - 3), **VARIANTS["average"])
    events = sound(run_dir)

    assert pieces(run_dir) == calm("average")
    assert [one.step for one in of(events, m.RolledBack)] == [8]
    assert moves(run_dir) == MOVES[:8] + MOVES[5:]


def has_checkpoint(task, step):
    return any(one.step == step for one in state_of(task.run).checkpoints.catalogue)


def test_a_rollback_to_before_the_first_seed_leaves_the_model_as_it_was_built(tmp_path):
    """From there on the host is trained as in a run without seeds, and a new seed gets a number of its own."""
    task, gone_back = Gardener(), []

    def back(step):
        if step == 12 and not gone_back:
            gone_back.append(step)
            task.plan = {}
            assert task.run.rollback(0)

    task.also = back
    model = train(tmp_path / "run", task, **VARIANTS["plain"])
    alone = train(tmp_path / "alone", Gardener({}), **VARIANTS["plain"])

    assert bits(model) == bits(alone)
    assert [one.step for one in of(events_of(tmp_path / "run"), m.RolledBack)] == [0]
    assert pieces(tmp_path / "run").keys() == pieces(tmp_path / "alone").keys()


@pytest.mark.parametrize(("plan", "first"), [(PLAN, 11), ({12: PLAN[2], 13: PLAN[3]}, 13)])
def test_a_rollback_in_memory_goes_over_a_cull_and_a_germination(tmp_path, calm, monkeypatch, plan, first):
    """To a snapshot from before update `first`, before which a seed was culled or germinated. No file is read."""
    hashed_at_once(monkeypatch.setattr)
    task, gone_back = Gardener(plan), []

    def back(step):
        kept = [one.step for one in state_of(task.run).snapshots.promoted if one.step < first]
        if step >= first and kept and not gone_back:
            gone_back.append(step)
            assert ordered(task.run, m.Rollback(step=max(kept), tier=m.Tier.FAST))

    task.also = back
    model = train(tmp_path / "run", task, **VARIANTS["in memory"])
    events = sound(tmp_path / "run")
    (begun,) = of(events, m.RollbackBegun)
    (done,) = of(events, m.RolledBack)

    assert begun.tier is m.Tier.FAST
    assert 0 < done.step < first
    if plan is PLAN:
        assert pieces(tmp_path / "run") == calm("in memory")
    else:
        # A seed that germinates again is another one: no number is used twice.
        assert [
            one.order.number
            for one in of(events, order_events.acted(m.MoveSeed))
            if one.order.stage is Stage.GERMINATED
        ] == [1, 2]
        assert model[3].stage is Stage.TRAINING


def test_a_loop_of_ones_own_trains_seeds_from_one_loss_only(tmp_path):
    """Each step updates the seed; several updates of a step are refused at the first call."""
    model, task = network(), Gardener({2: PLAN[2], 3: PLAN[3]})
    task.run = made(tmp_path / "run", **FULL)
    run = task.run.run(model, sgd(model), DataLoader(data(), 12))
    made_steps, weights = 0, []
    for _ in run.epochs(1):
        for inputs, targets in run.batches():
            run.step(functional.cross_entropy(model(inputs), targets))
            made_steps += 1
            task.on_step_end(model, made_steps)
            if model[3].seed is not None:
                weights.append(model[3].seed.branch[2].weight.clone())

    assert moves(tmp_path / "run") == [("a", Stage.GERMINATED, 3), ("a", Stage.TRAINING, 4)]
    assert not weights[0].any()
    assert weights[-1].any()
    sound(tmp_path / "run")

    model = network()
    other = made(tmp_path / "other", **FULL).run(model, sgd(model), DataLoader(data(), 12))

    def updates():
        for _ in other.epochs(1):
            for inputs, targets in other.batches():
                other.update("host", functional.cross_entropy(model(inputs), targets))

    with pytest.raises(SetupRefused, match="which of several losses a seed is to learn from"):
        updates()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01)
