"""Growth that the run records: it resumes and rolls back across it, to the bit of the run that nothing disturbed."""

from __future__ import annotations

import contextlib
import functools
import math
import pickle
import re

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from tests.library.growing import (
    ADDS,
    EPOCHS,
    WIDENS,
    Grows,
    Rebuilds,
    Splits,
    cautious,
    made,
    momentum,
    network,
    train,
)
from tests.library.inside import state_of, written_at_once
from tests.library.seeds import IN_STEP, hashed_at_once
from tests.library.small import bits, data
from tests.recorded import Stop, dies_at, events_of, of, sound
from tests.waiting import wait_for
from tolariad.core import messages as m
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.lr import controller_of

FULL = {"rollback": {"fast_path_enabled": False}}
AVERAGED = {**FULL, "ema": {"decay": 0.9}}
VARIANTS = {
    "adam": (Grows, None, FULL),
    "average": (Grows, None, AVERAGED),
    "cautious": (Grows, cautious, AVERAGED),
    "split": (Splits, momentum, AVERAGED),
    "rebuilds": (Rebuilds, None, FULL),
    "accumulate": (Grows, momentum, {**AVERAGED, "accumulate": 2}),
    "in memory": (Grows, None, {"ema": {"decay": 0.9}, **IN_STEP}),
}


ALL = [(1, "widen", WIDENS + 1, 0), (2, "append", 9, 1), (3, "gain", ADDS + 1, 0)]


class Hooks:
    """A task that never changes anything. Its loss draws nothing."""

    def loss(self, model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1])


def changes(run_dir):
    found = of(events_of(run_dir), m.ArchitectureChanged)
    return [(one.number, one.name, one.applied_before_step, one.epoch_ended) for one in found]


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The bits of each variant's run that nothing disturbed."""

    @functools.cache
    def calm_of(name):
        kind, optimizer, options = VARIANTS[name]
        return bits(train(tmp_path_factory.mktemp("calm"), kind(optimizer=optimizer), **options))

    return calm_of


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("adam", WIDENS),
        ("adam", 8),
        ("average", ADDS),
        ("cautious", 20),
        ("split", 10),
        ("rebuilds", 12),
        ("accumulate", ADDS + 1),
        ("in memory", 19),
    ],
)
def test_a_run_that_died_after_its_growth_ends_as_one_that_did_not(tmp_path, calm, name, at):
    """It begins from the newest checkpoint, whichever changes that holds, and makes the others again at their steps."""
    kind, optimizer, options = VARIANTS[name]
    run_dir = tmp_path / "run"

    with pytest.raises(Stop):
        train(run_dir, kind(dies_at(at), optimizer), **options)
    task = kind(optimizer=optimizer)
    assert bits(train(run_dir, task, **options)) == calm(name)
    sound(run_dir)

    assert changes(run_dir) == ALL
    assert task.made == ["widen", "append", "gain"]


def test_a_rebuild_in_the_tasks_grow_is_part_of_the_recorded_change(tmp_path, calm, caplog):
    """It acts: the reset state trains to other bits. Each rebuild is an event, none says that it was not recorded."""
    ended = bits(train(tmp_path, Rebuilds(), **FULL))
    rebuilt = of(events_of(tmp_path), m.OptimizerRebuildCommitted)

    assert ended == calm("rebuilds") != calm("adam")
    assert [(one.counts.reset, one.counts.transformed, one.counts.added) for one in rebuilt] == [
        (1, 0, 0),
        (0, 4, 0),
        (0, 0, 2),
        (0, 0, 1),
    ]
    assert "cannot repeat" not in caplog.text


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("epoch", "dies", "again"), [(0, None, ALL), (1, None, ALL[2:]), (0, 20, ALL), (1, ADDS, ALL[2:])]
)
def test_a_rollback_to_either_side_of_the_growth_needs_no_new_trainer(tmp_path, calm, monkeypatch, epoch, dies, again):
    """The model shrinks in place, grows again at the same steps, and ends the same, also if the trainer dies after
    that.
    """
    written_at_once(monkeypatch.setattr)
    run_dir, model = tmp_path / "run", network()
    tolaria, gone_back = made(run_dir, **AVERAGED), []

    def back(step):
        is_there = any(one.step == 8 * epoch for one in state_of(tolaria).checkpoints.catalogue)
        if step >= ADDS + 2 and is_there and not gone_back:
            gone_back.append(step)
            assert tolaria.rollback(epoch)
        elif gone_back and step == dies:
            raise Stop

    if dies is None:
        train(run_dir, Grows(back), model=model, tolaria=tolaria)
    else:
        with pytest.raises(Stop):
            train(run_dir, Grows(back), model=model, tolaria=tolaria)
        model = train(run_dir, Grows(), **AVERAGED)
    events = sound(run_dir)
    (back_to,) = of(events, m.RolledBack)

    assert bits(model) == calm("average")
    assert back_to.step == 8 * epoch
    assert changes(run_dir) == ALL + again


def test_a_rollback_in_memory_goes_over_the_growth(tmp_path, calm, monkeypatch):
    """To a snapshot of the small model, and on through the growth again."""
    hashed_at_once(monkeypatch.setattr)
    run_dir, model = tmp_path / "run", network()
    tolaria, gone_back = made(run_dir, **VARIANTS["in memory"][2]), []

    def back(step):
        if step == ADDS and not gone_back:
            wait_for(lambda: any(one.step >= 2 for one in state_of(tolaria).snapshots.kept))
            gone_back.append(step)
            assert tolaria.rollback(0)

    train(run_dir, Grows(back), model=model, tolaria=tolaria)
    assert bits(model) == calm("in memory")


class Asked(Grows):
    """It grows only while a file is there: by an order from outside, as a re-run cannot know it."""

    def __init__(self, flag, also=lambda step: None):
        super().__init__(also)
        self.flag = flag

    def on_step_end(self, model, step):
        if step != WIDENS or self.flag.exists():
            super().on_step_end(model, step)
        else:
            self.also(step)


def test_a_change_that_no_hook_asks_for_again_is_made_from_the_journal(tmp_path, calm):
    """At the step at which it was made, so the steps after it come out the same."""
    flag = tmp_path / "flag"
    flag.touch()

    with pytest.raises(Stop):
        train(tmp_path / "run", Asked(flag, dies_at(5)), **FULL)
    flag.unlink()
    assert bits(train(tmp_path / "run", Asked(flag), **FULL)) == calm("adam")
    assert changes(tmp_path / "run") == ALL


class Otherwise(Grows):
    """Another change at the same step."""

    def on_step_end(self, model, step):
        if step == WIDENS:
            controller_of(model).grow("widen", layer="4", before="0", norm="1", by=7)
        self.also(step)


def test_a_change_that_comes_out_otherwise_in_a_re_run_fails_the_run(tmp_path):
    """With both changes in the difference."""
    with pytest.raises(Stop):
        train(tmp_path, Grows(dies_at(5)), **FULL)
    loader = DataLoader(data(), batch_size=12, shuffle=True)
    with contextlib.suppress(Exception):
        made(tmp_path, **FULL).train(network(), loader, DataLoader(data(48), batch_size=24), EPOCHS, task=Otherwise())
    (differed,) = of(events_of(tmp_path), m.RerunDiverged)
    one = differed.difference

    assert (one.step, one.field) == (WIDENS, "architecture")
    assert ('"by": 8' in one.expected, '"by": 7' in one.found) == (True, True)


class Forgetful(Grows):
    """Its `grow` is gone."""

    grow = None


class Broken(Grows):
    """Its `grow` raises."""

    def widen(self, model, **arguments):
        model[0].out_features = 99
        raise LookupError("no such layer")


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Forgetful, "the task has no method grow.model, change.. Give it back the one that made the change"),
        (Broken, "the task's grow raised LookupError: no such layer. Let grow do what it did then"),
    ],
)
def test_a_start_whose_task_cannot_repeat_a_change_is_refused_and_costs_nothing(
    tmp_path, calm, monkeypatch, kind, says
):
    """The run fails with what to do; with the task put right it goes on from the same checkpoint."""
    written_at_once(monkeypatch.setattr)
    tolaria = made(tmp_path, **FULL)

    def die(step):
        if any(one.step == 8 for one in state_of(tolaria).checkpoints.catalogue):
            raise Stop

    with pytest.raises(Stop):
        train(tmp_path, Grows(die), tolaria=tolaria)
    with pytest.raises(SetupRefused, match=f"change 1 of the model, widen .* {says}"):
        train(tmp_path, kind(), **FULL)
    made_so_far = len(of(events_of(tmp_path), m.StepCompleted))
    assert bits(train(tmp_path, Grows(), **FULL)) == calm("adam")
    sound(tmp_path)
    assert 8 <= made_so_far < len(of(events_of(tmp_path), m.StepCompleted)) == 24


def test_a_change_that_cannot_be_made_or_recorded_leaves_everything_as_it_was(tmp_path):
    """Each is refused by name; a run whose hook goes on ends as one that never tried."""
    said = []

    def tries(grow):
        for name, arguments in (
            ("broken", {}),
            ("shrinks", {}),
            ("nan", {"by": math.nan}),
            ("keys", {"by": {1: 2}}),
            ("object", {"by": object()}),
            ("", {}),
            ("long", {"by": "x" * 5000}),
            ("nested", {}),
        ):
            with pytest.raises((SetupRefused, ZeroDivisionError)) as caught:
                grow(name, **arguments)
            said.append(str(caught.value))

    class Tries(Hooks):
        def on_step_end(self, model, step):
            if step == 2:
                tries(controller_of(model).grow)
            self.rates = controller_of(model)

        def loss(self, model, batch):
            if hasattr(self, "rates"):
                with pytest.raises(SetupRefused, match="outside of on_step_end and on_epoch_end"):
                    self.rates.grow("shrinks")
            return super().loss(model, batch)

        def grow(self, model, change):
            model[0].weight = nn.Parameter(torch.randn(3, 3))
            model.append(nn.Identity())
            if change.name == "broken":
                raise ZeroDivisionError("broken")
            if change.name == "nested":
                self.rates.grow("shrinks")

    calm, tried = network(), network()
    train(tmp_path / "calm", Hooks(), model=calm, **AVERAGED)
    train(tmp_path / "tried", Tries(), model=tried, **AVERAGED)
    assert len(tried) == len(calm)
    assert changes(tmp_path / "tried") == []
    assert bits(tried) == bits(calm)
    expected = ("broken", "0.weight .24, 16. -> .3, 3.: contract", "Out of range float", "come back from JSON")
    more = ("not JSON serializable", "1 to 128 printable", "take 5010 characters", "outside of on_step_end")
    assert all(re.search(pattern, text) for pattern, text in zip((*expected, *more), said, strict=True)), said


@pytest.mark.parametrize("died", [WIDENS + 2, ADDS + 2])
def test_a_program_may_give_the_grown_model_to_the_next_call(tmp_path, calm, died):
    """As in a notebook: what the run before it grew is undone first, and its gradients are dropped."""
    model = network()

    with pytest.raises(Stop):
        train(tmp_path, Grows(dies_at(died)), model=model, **FULL)
    assert model[0].out_features > network()[0].out_features
    assert bits(train(tmp_path, Grows(), model=model, **FULL)) == calm("adam")
    assert changes(tmp_path) == ALL
    sound(tmp_path)
    copied = pickle.loads(pickle.dumps(model))
    assert bits(copied) == bits(model)
