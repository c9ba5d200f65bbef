"""What a follower writes follows from the journal alone, and carries the names that people look for."""

from __future__ import annotations

import math

import pytest

from tests.core.simulate import World, until, until_found
from tests.followers.recording import went_back
from tolariad.core import messages as m
from tolariad.core.calc.learning_rate.curve import rates_digest
from tolariad.core.calc.learning_rate.group import Group, rate_of
from tolariad.core.calc.learning_rate.schedule import GroupConfig, LRPolicy, schedule_of
from tolariad.core.state.run_state import RunState, fold
from tolariad.followers.records import Begun, Ended, Numbers, Translator, Words


def translated(events):
    translator = Translator(RunState())
    return [record for event in events for record in translator.take(event)]


@pytest.fixture(scope="module")
def records():
    return translated(went_back().events)


def of(records, kind):
    return [one for one in records if isinstance(one, kind)]


def test_each_step_is_there_once_on_its_branch(records):
    """Branch 0 has the steps up to the rollback, branch 1 those after its target."""
    steps = [(one.branch, one.step) for one in of(records, Numbers) if dict(one.values).get("train/loss") is not None]

    assert steps == [(0, step) for step in range(1, 11)] + [(1, step) for step in range(5, 13)]
    assert [(one.branch, one.parent, one.step) for one in of(records, Begun)] == [(0, -1, 0), (1, 0, 4)]


def test_a_branch_says_which_one_was_left_for_it():
    """A second rollback to the same step leaves the second branch, and begins in the first."""
    world = until(World(0), 10)
    for step in (7, 7):
        world.command(m.Rollback(epoch=1, reason="too noisy"))
        until(until_found(world, m.RolledBack), step)

    begun = of(translated(world.events), Begun)
    assert [(one.branch, one.parent, one.left, one.step) for one in begun[1:]] == [(1, 0, 0, 4), (2, 0, 1, 4)]


def test_the_numbers_have_the_names_that_people_look_for(records):
    """Loss, rate and global step of each step; the validation's results."""
    names = {name for one in of(records, Numbers) for name, _ in one.values}

    assert {"train/loss", "trainer/global_step", "lr/default", "val/accuracy", "train/loss_epoch", "epoch"} <= names
    assert all(dict(one.values)["trainer/global_step"] == one.step for one in of(records, Numbers))


def test_notes_orders_rollbacks_stages_and_the_end_are_told_in_words(records):
    """Each under its tag, on the branch on which it happened, and once."""
    words = [(one.tag, one.branch, one.text) for one in of(records, Words)]

    assert [branch for tag, branch, text in words if tag == "notes" and "the loss | looks odd" in text] == [0]
    assert sum(tag == "events" for tag, _, _ in words) == 2, "the stage that no trainer began, and the end"
    assert {branch for tag, branch, _ in words if tag == "rollbacks"} == {0}
    assert len(words) == len(set(words))
    (end,) = of(records, Ended)
    assert (end.phase, end.branch, end.step) == ("completed", 1, 12)
    assert end.summary["trainer/global_step"] == 12
    assert end.summary["branches"] == 2


def test_the_records_are_the_same_wherever_a_follower_begins(records):
    """Each event of the run is once the first that a follower sees."""
    events = went_back().events
    for first in range(0, len(events), 7):
        translator = Translator(fold(RunState(), events[:first]))
        later = [record for event in events[first:] for record in translator.take(event)]
        assert later == [one for one in records if one.seq > first], f"from event {first + 1} on"


def test_a_stage_is_told_when_it_begins():
    """On the step before its first update."""
    world = until(World(0), 3)
    translator = Translator(world.state)
    acted = m.OrderActed(order=m.BeginStage(why="label smoothing on"), applied_before_step=4, number=1)
    ((words,),) = [translator.take(event) for event in (acted,)]

    assert (words.tag, words.step, "label smoothing on" in words.text) == ("stages", 3, True)


def two_groups(rates):
    """Return the numbers of a step that was made with these rates, in a run with two groups."""
    world = until(World(0), 3)
    groups = tuple(
        Group(name, schedule_of(GroupConfig(name, LRPolicy.HOST_COSINE, base_lr), steps_per_epoch=4, total_steps=12))
        for name, base_lr in (("default", 0.1), ("bias", 0.2))
    )
    translator = Translator(world.state)
    translator.take(m.LrGroupsChanged(groups=groups, applied_before_step=4))
    used = rates(groups)
    step = m.StepCompleted(
        step=4, epoch=1, batch=4, loss=1.0, grad_norm=m.NOT_MEASURED, lr=used[0], rates=rates_digest(used)
    )
    (numbers,) = translator.take(step)
    return used, dict(numbers.values)


def test_every_group_has_its_rate_and_a_guess_is_never_written():
    """The event holds the first group's rate. The other's is computed, and written if the digest of both agrees."""
    used, found = two_groups(lambda groups: tuple(rate_of(group, 4) for group in groups))
    assert (found["lr/default"], found["lr/bias"]) == used
    assert "train/grad_norm" not in found

    used, found = two_groups(lambda groups: (0.125, 0.25))
    assert found["lr/default"] == 0.125
    assert "lr/bias" not in found


def test_a_tasks_metric_keeps_its_name_unless_it_is_taken():
    """A step that does not have a metric does not write it."""
    world = until(World(0), 3)
    translator = Translator(world.state)
    translator.take(m.MetricsNamed(names=("acc", "epoch", "notes", "_step", "val/x")))
    absent = (math.nan,) * len(world.state.progress.metric_names)
    step = m.StepCompleted(
        step=4,
        epoch=1,
        batch=4,
        loss=1.0,
        grad_norm=2.0,
        lr=0.1,
        rates=1,
        metrics=(*absent, 0.5, 7.0, 8.0, 9.0, math.nan),
    )
    (numbers,) = translator.take(step)
    found = dict(numbers.values)

    assert (found["acc"], found["metric/epoch"], found["train/grad_norm"]) == (0.5, 7.0, 2.0)
    assert (found["metric/notes"], found["metric/_step"]) == (8.0, 9.0)
    assert "metric/val/x" not in found
