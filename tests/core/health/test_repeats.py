"""An exception that repeats at the same step ends the run at the second time, or its batch is skipped."""

from __future__ import annotations

import pytest

from tests.core.health.test_quarantine import Deadly, deadly
from tests.core.simulate import World, completes, find, tick_until, until
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.run.exits import EXIT_FAILED
from tolariad.core.state.run_state import RunState, fold

TEXT = "ValueError: the label of sample 448 is 7,\n  and there are 2 classes"
WORDS = "ValueError: the label of sample 448 is 7, and there are 2 classes (task.py:19)"
SAME = {"kind": "builtins.ValueError", "place": "task.py:19", "text": TEXT}


def training(world: World) -> bool:
    state, trainer = world.state, world.trainer
    is_new = trainer is not None and not world.due and not trainer.script
    return is_new and state.trainer.began and state.progress.rerun is None


def raise_in(world: World, **what: object) -> None:
    """Let the trainer raise as soon as it trains, and die of it."""
    tick_until(world, lambda: training(world), "a trainer that trains")
    report = m.ExceptionReport(step=world.state.progress.step, traceback="", **{**SAME, **what})
    world.give(m.ReportReceived(incarnation=world.trainer.incarnation, report=report))
    world.crash_trainer()
    tick_until(world, lambda: world.trainer is None and not world.state.trainer.alive, "its death")


def test_the_second_time_ends_the_run_with_the_exceptions_own_words():
    """The first time it is restarted. The reason is in the failure, whose causes lead to the exception."""
    world = until(World(0), 6)
    raise_in(world)
    assert world.state.run.phase is not st.Phase.FAILED
    raise_in(world)
    assert world.state.run.phase is st.Phase.FAILED
    (failed,) = find(world, m.RunFailed)
    assert failed.why == f"the training raised the same exception twice after step 6: {WORDS}"
    deaths, raised = find(world, m.TrainerDied), find(world, m.ExceptionRaised)
    assert [one.restart_s for one in deaths] == [0.0, None]
    assert [(one.kind, one.place, one.text) for one in raised] == [tuple(SAME.values())] * 2


@pytest.mark.parametrize(
    "other", [{"kind": "builtins.KeyError"}, {"place": "task.py:20"}, {"kind": "", "place": "", "text": ""}]
)
def test_another_exception_is_tried_again(other):
    """Another type, another line, or one of an older version that did not record its type."""
    world = until(World(0), 6)
    raise_in(world)
    raise_in(world, **other)
    raise_in(world)
    assert world.state.run.phase is not st.Phase.FAILED


def test_another_text_does_not_matter():
    """A text may contain an address or a time."""
    world = until(World(0), 6)
    raise_in(world, text="at 0x7f01")
    raise_in(world, text="at 0x7f02")
    assert world.state.run.phase is st.Phase.FAILED


def test_an_exception_after_a_new_step_is_another_one():
    """It was passed once. The same line at a later step begins anew."""
    world = until(World(0), 6)
    raise_in(world)
    until(world, 7)
    assert world.state.trainer.exception is None
    raise_in(world)
    assert world.state.run.phase is not st.Phase.FAILED


def test_a_crash_between_the_two_changes_nothing():
    """The memory is in the journal: another death, and a fold from the beginning, keep it."""
    world = until(World(0), 6)
    raise_in(world)
    tick_until(world, lambda: training(world), "a trainer that trains")
    world.crash_trainer()
    tick_until(world, lambda: not world.state.trainer.alive, "its death")
    assert fold(RunState(), world.events).trainer == world.state.trainer
    raise_in(world)
    assert world.state.run.phase is st.Phase.FAILED


def test_the_batch_is_skipped_instead_if_that_is_wanted():
    """At the second time, and the run goes on to its end; the reason has the exception's words."""
    world = deadly()
    at = world.state.progress.batch
    raise_in(world)
    assert find(world, m.QuarantineAdded) == []
    raise_in(world)
    (added,) = find(world, m.QuarantineAdded)
    assert added.batches == m.Batches(2, at + 1, at + 1)
    assert added.why == f"it raised the same exception twice: {WORDS}"
    assert (world.state.trainer.exception, world.state.trainer.deaths) == (None, 0)
    completes(world)


def test_an_exception_at_every_batch_still_ends_the_run():
    """Skipping helps nothing: after so many batches the second time is the end."""
    world = deadly()
    count = 0
    while world.state.run.phase is not st.Phase.FAILED and count < 99:
        raise_next(world)
        count += 1
    assert count == 2 * st.CURED_MAX + 2
    assert len(find(world, m.QuarantineAdded)) == st.CURED_MAX
    assert WORDS in world.state.run.why


def raise_next(world: Deadly) -> None:
    """As `raise_in`, after all batches that are skipped."""

    def trains() -> bool:
        one = world.trainer
        return training(world) and not one._is_held(one.done_epoch + 1, one.batch + 1)

    tick_until(world, trains, "a trainer that trains")
    raise_in(world)


def test_in_a_validation_the_second_time_is_the_end_even_if_batches_may_be_skipped():
    """No batch of the training is to blame."""
    world = World(0, skip_batch_on_death=True)
    for _ in range(2):
        tick_until(world, lambda: world.state.progress.validating is not None, "a validation")
        report = m.ExceptionReport(step=world.state.progress.step, traceback="", **SAME)
        world.give(m.ReportReceived(incarnation=world.trainer.incarnation, report=report))
        world.crash_trainer()
        tick_until(world, lambda: not world.state.trainer.alive, "its death")
    assert world.state.run.phase is st.Phase.FAILED
    assert find(world, m.QuarantineAdded) == []


def test_a_retry_tries_twice_again():
    """The task may have been corrected before the retry."""
    world = until(World(0), 6)
    raise_in(world)
    raise_in(world)
    retried = fold(world.state, (m.RunRetried(),))
    assert (retried.trainer.exception, retried.trainer.repeats, retried.trainer.deaths) == (None, 0, 0)
    assert world.exit == EXIT_FAILED
