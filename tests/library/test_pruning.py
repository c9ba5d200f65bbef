"""Masks and compactions in a recorded run: it resumes and rolls back across them, to the bit of the undisturbed run."""

from __future__ import annotations

import functools

import pytest
import torch
from msgspec.structs import replace
from safetensors import safe_open
from torch.nn import functional
from torch.utils.data import DataLoader

from journal import Reader
from tests import order_events
from tests.library.inside import ordered, state_of
from tests.library.live_run import tolaria
from tests.library.pruning import (
    FIRST,
    FULL,
    PLAN,
    QUICK,
    SECOND,
    Compact,
    Lift,
    Live,
    Mask,
    Prunes,
    acted,
    found_by,
    given_in,
    groups_of,
    made,
    network,
    train,
    wait_for_checkpoint,
)
from tests.library.small import bits, data
from tests.recorded import Stop, dies_at, events_of, of, pieces, sound
from tests.waiting import wait_for
from tolariad.core import messages as m
from tolariad.core.calc.pruning.verdict import WindowAction
from tolariad.core.state.replay import replay_records
from tolariad.core.state.run_state import RunState
from tolariad.trainer.pruning.plan import read_plan
from tolariad.trainer.pruning.shrink import shrink
from tolariad.trainer.pruning.verify import find_groups

VARIANTS = {
    "plain": FULL,
    "average": {**FULL, "ema": {"decay": 0.9}},
    "in memory": {**QUICK, "ema": {"decay": 0.9}, "snapshots": {"every": 1, "watch_steps": 1}},
}
# Of the orders of the plan: which event, and the first update with it.
ACTED = [
    (order_events.acted(m.MaskUnits), 11),
    (order_events.acted(m.MaskUnits), 15),
    (order_events.acted(m.ReleaseMasks), 16),
    (order_events.acted(m.MaskUnits), 18),
    (order_events.acted(m.CompactModel), 27),
    (order_events.acted(m.MaskUnits), 30),
]


def test_the_groups_of_these_runs_are_those_that_an_analysis_finds():
    """So that nothing else here needs torch-pruning: a trainer does not."""
    pytest.importorskip("torch_pruning", reason="torch-pruning (extra `pruning`) is not installed")
    model = network().eval()
    assert groups_of(model) == find_groups(model, (torch.zeros(2, 16),)).groups


def orders(run_dir):
    return [(order_events.acted(type(one.order)), one.applied_before_step) for one in acted(run_dir)]


def numbers_of(wide, narrow, heads):
    """Return the number of parameters of the network with layers of these widths, and so many heads."""
    attention = 6 * heads * (4 + 1) + (2 * heads + 1) * 4
    return (16 + 3) * wide + (wide + 1) * narrow + (narrow + 1) * 12 + attention + (12 + 1) * 4


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The last checkpoint of each variant's run that nothing disturbed."""

    @functools.cache
    def calm_of(name, cycles=()):
        run_dir = tmp_path_factory.mktemp("calm") / "run"
        train(run_dir, Prunes(cycles=cycles), **VARIANTS[name])
        assert orders(run_dir) == ACTED
        return pieces(run_dir)

    return calm_of


def test_units_are_masked_lifted_and_removed_and_the_small_model_is_exported(tmp_path):
    """Each order acts before the next update. What was exported fits into a model that is shrunk alike."""
    model = train(tmp_path / "run", Prunes(), **VARIANTS["average"])
    events = sound(tmp_path / "run")

    assert orders(tmp_path / "run") == ACTED
    assert [one.cycle for one in of(events, m.MaskSetPassed)] == [1, 3, 4]
    assert [one.cycle for one in of(events, m.MaskSetRejected)] == [2]
    (compacted,) = of(events, order_events.acted(m.CompactModel))
    assert (compacted.outcome.parameters_before, compacted.outcome.parameters) == (
        numbers_of(24, 12, 4),
        numbers_of(19, 9, 2),
    )
    assert compacted.outcome.difference <= 1e-5
    # The masks of cycle 2 were lifted. A number in a row of one mask and a column of another is counted once.
    masked = {one.order.cycle: one for one in of(events, order_events.acted(m.MaskUnits))}
    assert masked[3].outcome.pruned_parameters < masked[3].outcome.parameters
    assert masked[1].outcome.pruned_parameters + masked[3].outcome.pruned_parameters == numbers_of(
        24, 12, 4
    ) - numbers_of(19, 9, 2)
    pruning = replay_records(RunState(), Reader(tmp_path / "run" / "journal").records(), strict=True).state.pruning
    assert pruning.removed_parameters == numbers_of(24, 12, 4) - numbers_of(19, 9, 2)
    assert pruning.masked_parameters == numbers_of(19, 9, 2) - numbers_of(18, 7, 1)
    assert pruning.share == 1 - numbers_of(18, 7, 1) / numbers_of(24, 12, 4)
    file = tmp_path / "model.safetensors"
    assert "remove the same from the model first" in tolaria("export-weights", tmp_path / "run", "-o", file)
    with safe_open(file, "pt") as opened:
        metadata, tensors = opened.metadata(), {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    again = network()
    shrink(again, metadata["compactions"])
    again.load_state_dict(tensors)
    assert bits(again) == bits(model)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("average", 11),
        ("average", 16),
        ("in memory", 18),
        pytest.param("plain", 13, marks=pytest.mark.torture),
        pytest.param("plain", 23, marks=pytest.mark.torture),
        ("average", 27),
    ],
)
def test_a_run_that_died_ends_as_one_that_did_not(tmp_path, calm, name, at):
    """The newest checkpoint contains some of the orders; the others act again at their steps."""
    run_dir = tmp_path / "run"

    with pytest.raises(Stop):
        train(run_dir, Prunes(also=dies_at(at)), **VARIANTS[name])
    train(run_dir, Prunes(given=given_in(run_dir)), **VARIANTS[name])
    sound(run_dir)

    assert pieces(run_dir) == calm(name)
    assert orders(run_dir) == ACTED


def test_orders_of_two_steps_may_act_before_one_after_a_death(tmp_path):
    """A run dies after the release was ordered and before step 15 is reported: masks and release act before it."""
    with pytest.raises(Stop):
        train(tmp_path / "run", Prunes(also=dies_at(15)), **FULL)
    train(tmp_path / "run", Prunes(given=given_in(tmp_path / "run")), **FULL)
    together = {**{step: one for step, one in PLAN.items() if step != 15}, 14: [PLAN[14], PLAN[15]]}
    train(tmp_path / "calm", Prunes(together), **FULL)
    expected = [*ACTED[:2], (order_events.acted(m.ReleaseMasks), 15), *ACTED[3:]]

    assert orders(tmp_path / "run") == orders(tmp_path / "calm") == expected
    assert pieces(tmp_path / "run") == pieces(tmp_path / "calm")


@pytest.mark.parametrize(
    ("at", "epoch", "again", "cycles", "dies"),
    [
        # The compaction is undone: the wide model has its masks again, and is compacted at the same step.
        (28, 3, ACTED[4:], (), True),
        # Masks are undone, of which others stay; and all of them.
        (19, 2, ACTED[3:], (1, 2, 4, 5), False),
        (12, 1, ACTED, (2, 3, 4, 5), True),
    ],
)
def test_a_rollback_goes_over_masks_and_a_compaction(tmp_path, calm, at, epoch, again, cycles, dies):
    """The orders after the target are given again. The end is the same, also if the trainer dies after that."""
    run_dir, gone_back = tmp_path / "run", []
    task = Prunes()

    def back(step):
        wait_for_checkpoint(task)
        if step == at and not gone_back:
            gone_back.append(step)
            assert task.run.rollback(epoch)
        elif gone_back and dies and step == 8 * epoch + 4:
            raise Stop

    task.also = back
    if dies:
        with pytest.raises(Stop):
            train(run_dir, task, **VARIANTS["average"])
        left = sum(one < 8 * epoch for one in PLAN) + sum(8 * epoch <= one <= 8 * epoch + 4 for one in PLAN)
        train(run_dir, Prunes(given=left), **VARIANTS["average"])
    else:
        train(run_dir, task, **VARIANTS["average"])
    events = sound(run_dir)

    assert [one.step for one in of(events, m.RolledBack)] == [8 * epoch]
    assert orders(run_dir)[-len(again) :] == again
    assert pieces(run_dir) == calm("average", cycles)


@pytest.mark.parametrize(
    ("first", "cycles"),
    [
        (27, ()),
        pytest.param(18, (1, 2, 4, 5), marks=pytest.mark.torture),
        pytest.param(11, (2, 3, 4, 5), marks=pytest.mark.torture),
    ],
)
def test_a_rollback_in_memory_goes_over_masks_and_a_compaction(tmp_path, calm, first, cycles):
    """To a snapshot from before update `first`, before which an order acted. No file is read."""
    task, gone_back = Prunes(), []

    def back(step):
        # A snapshot is hashed meanwhile, and reported at the next boundary.
        snapshots = Live.newest._snapshots
        wait_for(lambda: snapshots._job is None or snapshots._job.report is not None)
        if step == first + 1 and not gone_back:
            gone_back.append(step)
            wait_for(kept)
            assert ordered(task.run, m.Rollback(step=max(kept()), tier=m.Tier.FAST))

    def kept():
        """Return the snapshots from before the step after which the order was given: it is given again."""
        promoted = state_of(task.run).snapshots.promoted
        return [one.step for one in promoted if first - 4 <= one.step < first - 1]

    task.also = back
    train(tmp_path / "run", task, **VARIANTS["in memory"])
    events = sound(tmp_path / "run")
    (begun,), (done,) = of(events, m.RollbackBegun), of(events, m.RolledBack)

    assert begun.tier is m.Tier.FAST
    assert done.step < first - 1
    assert pieces(tmp_path / "run") == calm("in memory", cycles)


def test_masks_that_prove_harmful_are_undone_by_a_rollback_that_blames_no_batch(tmp_path):
    """The run goes back to the checkpoint before them, and ends as one in which nobody applied them."""
    task = Prunes({12: Mask(FIRST), 13: Lift(WindowAction.ROLLBACK)})
    task.also = lambda step: wait_for_checkpoint(task)
    model = train(tmp_path / "run", task, **VARIANTS["average"])
    alone = train(tmp_path / "alone", Prunes({}), **VARIANTS["average"])
    events = events_of(tmp_path / "run")
    (rejected,), (done,) = of(events, m.MaskSetRejected), of(events, m.RolledBack)

    assert (rejected.action, done.step) == (WindowAction.ROLLBACK, 8)
    assert of(events, m.QuarantineAdded) == []
    assert bits(model) == bits(alone)
    assert pieces(tmp_path / "run").keys() == pieces(tmp_path / "alone").keys()


class Doubtful(Prunes):
    """Its first analysis names other masks than its plan has. Units of the second one cannot be removed."""

    def analyze(self, mask):
        found = found_by(mask)
        plan = replace(read_plan(found.plan), fixed={"0": "it is so"})
        is_first = mask.chosen == FIRST
        self.answer(found=replace(found, sha256="0" * 64) if is_first else replace(found, plan=plan.text))


def test_orders_that_the_trainer_refuses_end_and_the_run_goes_on(tmp_path):
    """Masks whose hash is another one's, and the removal of units that can only be masked."""
    model = train(tmp_path / "run", Doubtful({10: Mask(FIRST), 12: Mask(SECOND), 20: Compact()}), epochs=3, **FULL)
    events = sound(tmp_path / "run")

    assert [one.order.cycle for one in of(events, order_events.aborted(m.MaskUnits))] == [1]
    assert "the masks of its units have SHA-256" in of(events, order_events.aborted(m.MaskUnits))[0].why
    assert orders(tmp_path / "run") == [(order_events.acted(m.MaskUnits), 13)]
    (refused,) = of(events, order_events.aborted(m.CompactModel))
    assert "the units of 0 can be masked but not removed: it is so" in refused.why
    assert model[0].out_features == 24


def test_a_loop_of_ones_own_is_masked_and_compacted(tmp_path):
    """Its `run.step` holds the masks; the compaction needs no loss of a task, and no batch."""
    task, model = Prunes({10: Mask(FIRST), 15: Compact()}), network()
    task.run = made(tmp_path / "run", **FULL)
    run = task.run.run(model, torch.optim.Adam(model.parameters(), lr=0.01), DataLoader(data(), 12))
    done, masked = 0, []
    for _ in run.epochs(3):
        for inputs, targets in run.batches():
            run.step(functional.cross_entropy(model(inputs), targets))
            done += 1
            task.on_step_end(model, done)
            masked.append(model[4].weight[7].count_nonzero().item())

    assert orders(tmp_path / "run") == [(order_events.acted(m.MaskUnits), 11), (order_events.acted(m.CompactModel), 16)]
    assert [one > 0 for one in masked[:15]] == 10 * [True] + 5 * [False]
    assert (model[0].out_features, model[4].out_features) == (21, 10)
    sound(tmp_path / "run")
