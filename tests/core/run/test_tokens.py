"""A run ends after so many tokens, which its task counts as a metric of each step."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from tests.core.simulate import World, find, until
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.bounds import token_count


class Counting(World):
    """A world whose trainers count `each` tokens a step."""

    each = 100.0

    def new_trainer(self, incarnation):
        made = super().new_trainer(incarnation)
        if not self.state.progress.metric_names:
            made.todo.append(m.MetricsNamedReport(names=("top1", "tokens")))
        made.act = self.counted(made.act)
        return made

    def counted(self, act):
        def counting(durable):
            report = act(durable)
            if not isinstance(report, m.StepReport):
                return report
            trainer = act.__self__
            if trainer.order.tokens_left is not None:
                left = trainer.order.tokens_left - token_count(self.each)
                trainer.order = replace(trainer.order, tokens_left=left)
            return replace(report, metrics=(0.5, self.each))

        return counting


def test_training_ends_with_the_step_that_has_the_last_token():
    """The limit is recorded; the last checkpoint follows, and the run is complete."""
    world = Counting(0, stop_tokens=650)
    world.run()

    (reached,) = find(world, m.LimitReached)
    assert (reached.limit, reached.step) == (m.Limit.TOKENS, 7)
    assert world.state.run.phase is st.Phase.COMPLETED
    assert world.state.progress.tokens == 100 * world.state.progress.step


@pytest.mark.parametrize("moment", range(1, 9))
def test_the_last_step_is_the_same_wherever_the_daemon_dies(moment):
    """The trainer begins no step after it, also if the daemon dies before the limit or after it."""
    world = until(Counting(0, stop_tokens=650), min(moment, 7))
    if moment > 7:
        world.tick()
    world.restart_daemon()
    world.run()

    (reached,) = find(world, m.LimitReached)
    assert (reached.step, world.state.progress.step, world.state.progress.tokens) == (7, 7, 700)
    assert world.state.run.phase is st.Phase.COMPLETED


def test_after_a_rollback_the_tokens_of_the_steps_that_stand_end_the_run():
    """The order to go back says how many are left at the target."""
    world = until(Counting(0, stop_tokens=1050), 9)
    world.command(m.Rollback())
    while not find(world, m.RolledBack):
        world.tick()
    (back,) = find(world, m.RolledBack)
    world.run()

    assert 0 < back.step < 9
    assert (world.state.progress.step, world.state.progress.tokens) == (11, 1100)


def test_a_restart_counts_on_and_a_rollback_counts_the_steps_that_stand():
    """The sum is that of the journal's steps on the line of the run, each once."""
    world = until(Counting(0, stop_tokens=10**9), 6)
    world.restart_daemon()
    until(world, 9)
    assert world.state.progress.tokens == 900
    world.command(m.Rollback())
    while not find(world, m.RolledBack):
        world.tick()
    until(world, world.state.progress.step + 1)
    assert world.state.progress.tokens == 100 * world.state.progress.step


def test_without_tokens_the_run_fails_at_once_and_says_what_to_return():
    """Otherwise it would train to its last epoch without a word."""
    world = World(0, stop_tokens=650)
    world.run()

    assert (world.state.run.failure, world.state.progress.step) == (m.FailureKind.CONFIGURATION, 1)
    assert "loss(model, batch) must return them" in world.state.run.why


@pytest.mark.parametrize("value", [math.nan, math.inf, -5.0, 1e300])
def test_a_count_that_is_none_adds_nothing(value):
    """A fold never raises, whatever a step holds."""
    world = Counting(0)
    world.each = value
    until(world, 3)

    assert world.state.progress.tokens == 0
