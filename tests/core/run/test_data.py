"""A run goes on with the data that it was trained on, or with other data if its start allows it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.core.facts import daemon_started, environment
from tests.core.simulate import World, completes, find, until
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core.messages.sentences.text import sentence

DATA = m.DataPrint(length=512, items=("a1", "b1", ""))
OTHER = m.DataPrint(length=512, items=("a1", "b2", "c2"))


def restarted(world, data, validation=None, *, accept=False, mode=m.StartMode.EXPLICIT):
    """A new daemon, whose trainer finds this data."""
    world.environment = environment(data=tuple(filter(None, (data, validation))))
    world.trainer, world.exit = None, None
    world.due.clear()
    world.give(m.Opened(mode=mode, facts=(replace(daemon_started(), accept_data=accept),)))
    return world


def trained(data=DATA, validation=None):
    """A run that has made six steps on `data`."""
    world = World(0)
    world.environment = environment(data=tuple(filter(None, (data, validation))))
    return until(world, 6)


@pytest.mark.parametrize(
    ("data", "validation", "what"),
    [
        (OTHER, DATA, "the training data differ in 1 of 2 compared items"),
        (m.DataPrint(length=600, items=DATA.items), DATA, "the training data have 600 items instead of 512"),
        (DATA, m.DataPrint(length=9), "the validation data have 9 items instead of 512"),
    ],
)
def test_a_resume_on_other_data_is_refused_with_what_differs(data, validation, what):
    """No step is made; the sentence names the usual cause and the option that goes on; exit code 78."""
    world = restarted(trained(DATA, DATA), data, validation)
    world.run()
    assert (world.state.run.failure, world.exit, world.state.progress.step) == (m.FailureKind.DATA, 78, 6)
    why = world.state.run.why
    assert what in why
    assert "torch.randn" in why
    assert "--accept-data" in q.way_on(world.state.run.failure, in_program=False)


def test_accepted_data_are_recorded_and_those_of_the_run_from_then_on():
    """The start that accepts them needs no --retry. The difference is recorded and said."""
    world = restarted(trained(), OTHER)
    world.run()
    restarted(world, OTHER, accept=True)
    until(world, 7)
    recorded = find(world, m.ExecutionContextRecorded)[-1]
    assert recorded.other_data == "the training data differ in 1 of 2 compared items"
    assert "Other data were accepted: the training data differ" in sentence(recorded)
    assert recorded in [one.event for one in world.state.said.latest]
    restarted(world, OTHER)
    until(world, 8)
    restarted(world, DATA)
    world.run()
    assert world.state.run.failure is m.FailureKind.DATA


def test_data_are_accepted_once_and_not_for_every_trainer_of_the_start():
    """Data without a seed are other data at every start, so the next one is refused again."""
    world = restarted(trained(), OTHER, accept=True)
    until(world, 7)
    assert not world.state.trainer.accepts_data
    restarted(world, m.DataPrint(length=512, items=("x", "y")))
    world.run()
    assert world.state.run.failure is m.FailureKind.DATA


def test_the_former_data_and_retry_go_on():
    """Nothing of the refused start counts."""
    world = restarted(trained(), OTHER)
    world.run()
    restarted(world, DATA, mode=m.StartMode.RETRY)
    completes(world)


def test_an_old_journal_learns_the_fingerprint():
    """It has none, so the first one counts."""
    world = restarted(trained(None), DATA)
    until(world, 7)
    assert world.state.progress.data == (DATA,)
    restarted(world, OTHER)
    world.run()
    assert world.state.run.failure is m.FailureKind.DATA


def test_before_the_first_step_no_data_are_wrong():
    """Nothing was trained on the former ones."""
    world = World(0)
    world.environment = environment(data=(DATA,))
    while not find(world, m.ExecutionContextRecorded):
        world.tick()
    restarted(world, OTHER)
    completes(world)


def test_data_without_hashes_are_compared_by_their_length():
    """Data that can only be iterated over."""
    world = restarted(trained(), m.DataPrint(length=512))
    completes(world)
