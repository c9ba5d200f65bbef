"""A command of the strategy becomes one order of core, or the sentence why it becomes none."""

from __future__ import annotations

import pytest
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

from tests.leyline.test_commands import GOOD, command, rollback
from tolariad.core import messages as m
from tolariad.core.calc.health.breaker import BreakerState
from tolariad.core.calc.seeds.stages import Stage
from tolariad.leyline import CommandOptimizerAdjustment, CommandSeedOperation, CommandType, SeedOperation
from tolariad.strategy.process.orders import translated

REASON = {"reason": "plateau"}


def seed(operation, **fields):
    given = CommandSeedOperation(operation=f"SEED_OP_{operation}", **fields)
    return command("COMMAND_SEED", target_seed_id="first", seed_operation=given, annotations=REASON)


@pytest.mark.parametrize(
    ("given", "order"),
    [
        (
            seed("GERMINATE", blueprint_id="conv", parameters={"width": 4.0}),
            m.AdaptSeed(
                slot="first", stage=Stage.GERMINATED, blueprint="conv", parameters={"width": 4.0}, reason="plateau"
            ),
        ),
        (seed("START_GRAFTING"), m.AdaptSeed(slot="first", stage=Stage.BLENDING, reason="plateau")),
        (seed("CULL"), m.AdaptSeed(slot="first", stage=Stage.CULLED, reason="plateau")),
        (
            command(
                "COMMAND_OPTIMIZER",
                optimizer_adjustment=CommandOptimizerAdjustment(optimizer_id="head", hyperparameters={"lr": 0.5}),
                annotations=REASON,
            ),
            m.AdjustOptimizer(optimizer="head", values={"lr": 0.5}, reason="plateau"),
        ),
        (
            command("COMMAND_ROLLBACK", rollback_payload=rollback(target_epoch=3, tier="fast", reason="it diverges")),
            m.Rollback(epoch=3, tier=m.Tier.FAST, reason="it diverges"),
        ),
        (command("COMMAND_ROLLBACK"), m.Rollback()),
        (command("COMMAND_PAUSE", annotations=REASON), m.Pause(reason="plateau")),
        (
            command("COMMAND_EMERGENCY", annotations={"level": "HALT", **REASON}),
            m.RaiseEmergency(level=m.Level.CRITICAL, reason="plateau"),
        ),
        (
            command(
                "COMMAND_CIRCUIT_BREAKER",
                circuit_breaker={"desired_state": "CIRCUIT_STATE_OPEN", "rationale": "noisy"},
                annotations={"breaker": "lr"},
            ),
            m.SetBreaker(breaker="lr", state=BreakerState.OPEN, reason="noisy"),
        ),
    ],
)
def test_a_command_becomes_the_order_with_its_values_and_reason(given, order):
    """Under the command's id and type; it never expires unless it says so."""
    found = translated(given)
    assert (found.order, found.id, found.kind) == (order, "c1", CommandType.Name(given.command_type))
    assert (found.expires, found.refused) == (0, "")


def test_a_deadline_is_counted_from_the_time_of_issue():
    """In ns of the wall clock, as the kernel's inputs have it."""
    given = command("COMMAND_PAUSE", execution_deadline_ms=250, issued_at=Timestamp(seconds=7, nanos=5))
    assert translated(given).expires == 7_250_000_005


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (command("COMMAND_STRUCTURAL_PRUNING"), "does not prune"),
        (seed("FINE_TUNE"), "SEED_OP_FINE_TUNE is not known to this run"),
        (seed("GERMINATE", blueprint_id="conv", parameters={"width": float("nan")}), "must be a finite number"),
        (command("COMMAND_PAUSE", version=2), "has version 2"),
        (command("COMMAND_PAUSE", command_id="x" * 129), "more than 128 characters"),
        (command("COMMAND_SEED", target_seed_id="s" * 2000, seed_operation={"operation": "SEED_OP_CULL"}), "slot must"),
        (command("COMMAND_ROLLBACK", rollback_payload=rollback(target_epoch=1e15)), "epoch must"),
        (command(77), "has no command type 77"),
    ],
)
def test_a_command_that_no_run_can_obey_has_the_reason_instead(given, why):
    """A sentence; the id is cut to what an event can hold."""
    found = translated(given)
    assert found.order is None
    assert why in found.refused
    assert len(found.id) <= 128


def test_every_valid_command_of_the_contract_has_an_order():
    """But the empty one, which the strategist leaves out."""
    for given in GOOD:
        if given.command_type != CommandType.COMMAND_UNKNOWN:
            assert translated(given).order is not None, given


def test_no_rollback_payload_breaks_the_translation():
    """A Struct may hold anything; a reason that is a number is text."""
    payload = Struct()
    payload.update({"reason": 5})
    assert translated(command("COMMAND_ROLLBACK", rollback_payload=payload)).order == m.Rollback(reason="5.0")
    assert SeedOperation.SEED_OP_FINE_TUNE == 6
