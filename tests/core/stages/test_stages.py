"""Announced stages: who may announce one, what announces itself, and what a rollback takes back."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests import order_events
from tests.core.boundary.test_orders import until_acted
from tests.core.facts import daemon_started
from tests.core.rated import RatedTrainer, RatedWorld
from tests.core.rates.test_rates_restored import gone_back
from tests.core.simulate import find, until, until_found
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.seeds.stages import Stage
from tolariad.core.calc.settings.changes import is_announced
from tolariad.core.decision import Accepted
from tolariad.core.messages.sentences.text import sentence

BEGAN = order_events.acted(m.BeginStage)


class StagedTrainer(RatedTrainer):
    """Obeys stages as well as rates. `told`: the stages of the order to train."""

    told: tuple[m.StageAt, ...] = ()

    def carry_out(self, order):
        if not isinstance(order, m.BeginStage):
            return super().carry_out(order)
        self.applied += 1
        return ""

    def repeat(self, order):
        if not isinstance(order, m.BeginStage):
            super().repeat(order)

    def _begin(self, order):
        self.told = order.stages
        super()._begin(order)

    def announce(self, why):
        """The loop's own code announces a stage."""
        self.applied += 1
        epoch = self.done_epoch + 1
        self.todo.append(m.StageReport(why=why, applied_before_step=self.step + 1, epoch=epoch))


class StagedWorld(RatedWorld):
    def new_trainer(self, incarnation):
        given = incarnation, self.environment, self.accuracy, self.broken
        return StagedTrainer(*given, saved=self.saved, owing=self.owing)

    def stage(self, text, **given):
        return self.command(m.AnnounceStage(text=text, **given))

    @property
    def begun(self):
        return [(one.before_step, one.why) for one in self.state.stages.begun]


def test_an_ordered_stage_begins_at_the_next_boundary():
    """It is accepted, sent, answered, and in the state; the sentence says what was announced."""
    world = until(StagedWorld(0), 5)
    assert isinstance(world.stage("new classes", id="a"), Accepted)
    until_acted(world, 1)
    (event,) = find(world, BEGAN)

    assert (event.applied_before_step, event.number, event.outcome.epoch) == (6, 1, 2)
    assert world.state.stages.newest == m.StageAt(1, 6, 2, "new classes")
    assert sentence(event) == "A stage begins at step 6, announced by test: new classes."
    assert isinstance(world.stage("new classes", id="a"), Accepted)
    assert len(find(world, order_events.given(m.BeginStage))) == 1


@pytest.mark.parametrize("text", ["", " \n"])
def test_a_stage_without_a_text_is_refused(text):
    """The text is all that tells a reader later what changed."""
    refused = until(StagedWorld(0), 2).stage(text)

    assert isinstance(refused, m.Refusal)
    assert "say what changed" in refused.why


def test_a_run_that_is_over_has_no_new_stage():
    """Nor one that stops."""
    world = StagedWorld(0)
    world.run()

    assert world.stage("too late").error == "WrongPhase"


def test_what_the_loop_announces_is_recorded_as_an_order_that_nobody_gave():
    """It is numbered with the orders, so a re-run repeats it and a checkpoint counts it."""
    world = until(StagedWorld(0), 5)
    world.trainer.announce("label smoothing on")
    world.lr_set("head", 0.01)
    until_acted(world, 2)
    (event,) = find(world, BEGAN)

    assert (event.number, event.applied_before_step, event.cause, event.by) == (1, 6, 0, m.BY_PROGRAM)
    assert find(world, order_events.acted(m.SetRate))[0].number == 2
    world.crash_trainer()
    until_found(world, m.RerunFinished)
    until(world, 7)
    assert world.trainer.applied == 2
    assert world.trainer.told == world.state.stages.begun


def test_a_rollback_takes_back_the_stages_after_its_target():
    """Those that the target contains stay; the trainer of a later start is told of these."""
    world = until(StagedWorld(0), 2)
    world.stage("first")
    until_acted(world, 1)
    until(world, 6)
    world.trainer.announce("second")
    until_acted(world, 2)
    assert world.begun == [(3, "first"), (7, "second")]
    gone_back(world, epoch=1)

    assert world.begun == [(3, "first")] * (world.state.boundary.acted == 1)


def test_another_end_and_another_configuration_announce_themselves():
    """The first at once, the second to the next trainer. Keys that change no step announce nothing."""
    world = until(StagedWorld(0), 2)
    world.command(m.Extend(epochs=5))
    until_acted(world, 1)
    config = replace(world.events[0], policy=world.state.run.policy)
    changed = m.ConfigChanged(
        config="", config_hash=config.config_hash, policy=config.policy, keys=("accumulate", "audit.every_steps")
    )
    world.trainer = None
    world.give(m.Opened(mode=m.StartMode.EXPLICIT, facts=(daemon_started(), changed)))
    until_acted(world, 2)

    assert [why for _, why in world.begun] == [
        "another end of the training was ordered",
        "the configuration changed: accumulate",
    ]


@pytest.mark.parametrize(
    ("key", "is_so"),
    [
        ("accumulate", True),
        ("learning_rate.base_lr", True),
        ("optimizer.groups[0].base_lr", True),
        ("epochs", True),
        ("stop.steps", True),
        ("stop.hours", False),
        ("learning_rate.circuit_breaker_threshold", False),
        ("detect.rollback", False),
        ("checkpoint.keep", False),
    ],
)
def test_keys_whose_change_may_make_the_loss_jump(key, is_so):
    """What trains otherwise, and nothing else."""
    assert is_announced(key) is is_so


def acted(order, outcome=None):
    return m.OrderActed(order=order, applied_before_step=7, number=3, outcome=outcome)


@pytest.mark.parametrize(
    ("event", "is_so"),
    [
        (acted(m.SetRate(group="head", value=0.2), m.RateSet(before=0.1)), True),
        (acted(m.SetRate(group="head", value=0.1), m.RateSet(before=0.1)), False),
        (acted(m.SetRate(group="head", value=0.05), m.RateSet(before=0.1)), False),
        (acted(m.SetHyperparameters(optimizer="", values={"beta1": 0.5})), True),
        (acted(m.MoveSeed(slot="a", stage=Stage.GERMINATED)), True),
        (acted(m.MoveSeed(slot="a", stage=Stage.CULLED)), True),
        (acted(m.MoveSeed(slot="a", stage=Stage.BLENDING)), False),
        (acted(m.ReleaseMasks(cycle=2)), True),
        (acted(m.MaskUnits(cycle=2, units={}, sha256="")), False),
        (acted(m.KeepStrategyState(epoch=1, state=b"")), False),
    ],
    ids=lambda one: "" if isinstance(one, bool) else type(one.order).__name__,
)
def test_orders_that_announce_themselves(event, is_so):
    """Those after which the loss may be higher and nothing is wrong. A lower rate is no reason for a higher loss."""
    assert bool(st.announced(event)) is is_so


def test_of_very_many_stages_the_newest_are_kept():
    """The state is bounded."""
    world = until(StagedWorld(0), 2)
    for number in range(st.STAGES_MAX + 3):
        world.trainer.announce(f"stage {number}")
        world.tick()
    until_acted(world, st.STAGES_MAX + 3)

    assert len(world.begun) == st.STAGES_MAX
    assert world.begun[-1][1] == f"stage {st.STAGES_MAX + 2}"
