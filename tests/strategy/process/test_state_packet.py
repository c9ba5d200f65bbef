"""The packet says what the durable state says, of every slot, within Leyline's limits."""

from __future__ import annotations

import uuid

import pytest
from msgspec.structs import replace

from tests.core.simulate import tick_until, until
from tests.core.strategy.asked import SLOTS, StrategyWorld, command
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.seeds.gates import SeedMeasure
from tolariad.core.calc.seeds.stages import Stage
from tolariad.leyline import HardwareContext, SystemStatePacket, decode, encode
from tolariad.strategy.process.state_packet import packet_of

HARDWARE = HardwareContext(
    device_type="cuda",
    device_id="cuda:0",
    total_memory_gb=79.6,
    available_memory_gb=40.0,
    temperature_celsius=55.0,
    utilization_percent=97.0,
    compute_capability=90,
)


def packet(world, epoch):
    return packet_of(world.state, epoch, HARDWARE, uuid.uuid4().hex, 123)


def test_the_packet_of_an_epoch_has_its_figures():
    """Epoch, step, losses, metrics and identity; what the run does not have is left out or 0."""
    world = StrategyWorld(0).until_asked(1)
    found = packet(world, 1)
    state = world.state

    assert (found.version, found.current_epoch, found.global_step, found.timestamp_ns) == (1, 1, 4, 123)
    assert found.validation_accuracy == pytest.approx(state.progress.metrics["accuracy"])
    assert found.training_loss == pytest.approx(state.progress.train_loss)
    assert (found.training_run_id, found.experiment_name) == (state.run.run_id, state.run.name)
    assert found.source_subsystem == "tolaria"
    assert found.hardware_context == HARDWARE
    told = dict(found.training_metrics)
    expected = {"validated": 1, "branch": 0, "epochs": 3, "skipped_steps": 1, "epoch_steps": 4, "findings": 0}
    assert {name: told[name] for name in expected} == expected
    assert told["gradient_norm"] == pytest.approx(2.0)
    assert told["learning_rate"] == pytest.approx(state.progress.lr)
    assert (told["rollbacks"], told["conservative"]) == (0, 0)
    assert decode(SystemStatePacket, encode(found)) == found


def test_rollbacks_that_the_strategy_ordered_are_counted_on_every_branch():
    """Its own state goes back with each of them, so the run counts. Those of others are not counted."""
    world = StrategyWorld(0).until_asked(2)
    world.command(m.Rollback(epoch=1))
    world.vote()
    tick_until(world, lambda: world.state.progress.branch == 1, "the other's rollback")
    world.until_asked(2).answer(command(m.Rollback(epoch=1), "r"))
    world.vote()
    tick_until(world, lambda: world.state.progress.branch == 2, "its rollback")
    world.until_asked(2)

    told = packet(world, 2).training_metrics
    assert (told["rollbacks"], told["branch"]) == (1, 2)


def test_conservative_mode_and_findings_are_told():
    """A run that is careful, and one that had trouble in this epoch."""
    world = StrategyWorld(0)
    until(world, 3)
    world.command(m.RaiseEmergency(level=m.Level.SEVERE))
    for _ in range(200):
        if world.votes:
            world.vote()
        if world.state.boundary.asked is not None:
            break
        world.tick()
    assert packet(world, 1).training_metrics["conservative"] == 1


def test_every_slot_is_told_with_its_stage_and_measurements():
    """Empty ones too; what was not measured is left out, and never a negative number."""
    world = StrategyWorld(0, slots=SLOTS).until_asked(1)
    measure = SeedMeasure(
        slot="first",
        stage=Stage.BLENDING,
        alpha=0.5,
        gradient_norm=0.25,
        learning_rate=0.01,
        steps_in_stage=3,
        dropped=2,
    )
    seed = st.Seed("first", stage=Stage.BLENDING, germination=1, since_step=3, blend_steps=4, parameters_added=99)
    world.state = replace(
        world.state, seeds=replace(world.state.seeds, seeds={"first": seed}, measures={"first": measure})
    )
    first, second = packet(world, 1).seed_states

    assert (first.seed_id, first.stage, first.layer_depth, first.age_epochs) == ("first", Stage.BLENDING, 1, 1)
    assert (first.gradient_norm, first.learning_rate) == (0.25, pytest.approx(0.01))
    told = dict(first.metrics)
    assert told["alpha"] == pytest.approx(seed.alpha_after(4))
    assert (told["number"], told["steps_in_stage"], told["parameters"], told["dropped"]) == (1, 2, 99, 2)
    assert "drift" not in told
    assert (second.seed_id, second.stage, second.layer_depth) == ("second", Stage.DORMANT, 2)
    assert dict(second.metrics) == {"alpha": 0.0}


def test_a_packet_with_a_hundred_slots_fits():
    """Leyline allows a hundred, and so does a run."""
    slots = tuple(m.SlotFound(f"blocks.{n}.slot", n) for n in range(100))
    world = StrategyWorld(0, slots=slots).until_asked(1)
    found = packet(world, 1)
    assert len(found.seed_states) == 100
    assert len(encode(found)) < 10_000


def test_the_header_of_a_packet_is_smaller_than_leyline_s_limit():
    """Without metrics and seeds: 280 bytes, with a run's id, an id of its own and all figures of a device."""
    world = StrategyWorld(0).until_asked(1)
    found = packet(world, 1)
    found.ClearField("training_metrics")
    found.ClearField("seed_states")
    print(f"{len(encode(found))} bytes")
    assert len(encode(found)) < 280
