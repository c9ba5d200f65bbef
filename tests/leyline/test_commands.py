"""Every type of command has a meaning in the run or is refused by name, and a malformed one is refused."""

from __future__ import annotations

import pytest
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

from tolariad.core import messages as m
from tolariad.leyline import (
    MEANINGS,
    AdaptationCommand,
    CircuitBreakerState,
    CommandCircuitBreaker,
    CommandOptimizerAdjustment,
    CommandRefused,
    CommandSeedOperation,
    CommandType,
    SeedOperation,
    VersionMismatch,
    check_command,
)
from tolariad.leyline.commands import LEVELS

NAN = float("nan")


def command(kind, **fields):
    """A command of this type, with the fields that every command needs."""
    return AdaptationCommand(**{"version": 1, "command_id": "c1", "command_type": kind} | fields)


def rollback(**keys):
    """The payload of a rollback."""
    payload = Struct()
    payload.update(keys)
    return payload


def germinate(**fields):
    """The payload that germinates a seed."""
    return CommandSeedOperation(**{"operation": SeedOperation.SEED_OP_GERMINATE, "blueprint_id": "conv"} | fields)


def breaker(state):
    """The payload that sets a breaker."""
    return CommandCircuitBreaker(desired_state=CircuitBreakerState.Value(f"CIRCUIT_STATE_{state}"))


LR = CommandOptimizerAdjustment(hyperparameters={"lr": 1e-3})
GOOD = [
    command("COMMAND_UNKNOWN", command_id=""),
    command("COMMAND_SEED", target_seed_id="s", seed_operation=germinate(parameters={"width": 4.0})),
    command("COMMAND_SEED", target_seed_id="s", seed_operation=CommandSeedOperation(operation="SEED_OP_CULL")),
    command("COMMAND_ROLLBACK"),
    command("COMMAND_ROLLBACK", rollback_payload=rollback(target_epoch=3, tier="full", reason="it diverges")),
    command("COMMAND_OPTIMIZER", optimizer_adjustment=LR, execution_deadline_ms=5, issued_at=Timestamp(seconds=1)),
    command("COMMAND_CIRCUIT_BREAKER", circuit_breaker=breaker("OPEN"), annotations={"breaker": "lr"}),
    command("COMMAND_PAUSE"),
    command("COMMAND_EMERGENCY", annotations={"level": "HALT"}),
]
BAD = [
    (command("COMMAND_STRUCTURAL_PRUNING"), "COMMAND_STRUCTURAL_PRUNING is refused: a strategy does not prune"),
    (command(8), "no command type 8; the last one is 7"),
    (command("COMMAND_UNKNOWN", optimizer_adjustment=LR), "carries `optimizer_adjustment`; it needs none"),
    (command("COMMAND_PAUSE", seed_operation=germinate()), "COMMAND_PAUSE carries `seed_operation`; it needs none"),
    (command("COMMAND_SEED", optimizer_adjustment=LR), "it needs `seed_operation`"),
    (command("COMMAND_SEED", target_seed_id="s"), "carries no payload; it needs `seed_operation`"),
    (command("COMMAND_PAUSE", command_id=" "), "has no `command_id`"),
    (command("COMMAND_PAUSE", execution_deadline_ms=5), "a deadline but no `issued_at`"),
    (command("COMMAND_SEED", seed_operation=germinate()), "set `target_seed_id`"),
    (command("COMMAND_SEED", target_seed_id="s", seed_operation=germinate(operation=0)), "has operation 0"),
    (command("COMMAND_SEED", target_seed_id="s", seed_operation=germinate(operation=10)), "has operation 10"),
    (command("COMMAND_SEED", target_seed_id="s", seed_operation=germinate(blueprint_id=" ")), "set `blueprint_id`"),
    (command("COMMAND_SEED", target_seed_id="s", seed_operation=germinate(parameters={"a": NAN})), "a = nan"),
    (command("COMMAND_ROLLBACK", rollback_payload=rollback(epoch=3)), "unknown key 'epoch'"),
    (command("COMMAND_ROLLBACK", rollback_payload=rollback(tier="quick")), "tier 'quick'; tiers are fast, full"),
    *(
        (command("COMMAND_ROLLBACK", rollback_payload=rollback(target_epoch=wrong)), "must be a whole number")
        for wrong in (-1, 0.5, NAN, float("inf"), "3", True, None)
    ),
    (command("COMMAND_OPTIMIZER", optimizer_adjustment=CommandOptimizerAdjustment()), "name at least one"),
    (
        command("COMMAND_OPTIMIZER", optimizer_adjustment=CommandOptimizerAdjustment(hyperparameters={"lr": NAN})),
        "lr = nan; it must be a finite number",
    ),
    (command("COMMAND_CIRCUIT_BREAKER", circuit_breaker=breaker("OPEN")), "the annotation `breaker` must be one of lr"),
    (
        command("COMMAND_CIRCUIT_BREAKER", circuit_breaker=breaker("HALF_OPEN"), annotations={"breaker": "lr"}),
        "CIRCUIT_STATE_OPEN or CIRCUIT_STATE_CLOSED",
    ),
    (command("COMMAND_EMERGENCY", annotations={"level": "minor"}), "one of NOTICE, ELEVATED, CONSERVATIVE, HALT"),
]


def test_every_type_of_the_contract_has_a_meaning_or_a_refusal():
    """One row for each number; a refusal gives its reason."""
    assert set(MEANINGS) == set(CommandType.values())
    assert [CommandType.Name(number) for number, one in MEANINGS.items() if one.refused] == [
        "COMMAND_STRUCTURAL_PRUNING"
    ]
    payloads = set(AdaptationCommand.DESCRIPTOR.oneofs_by_name["payload"].fields)
    assert {one.payload for one in MEANINGS.values() if one.payload} == {field.name for field in payloads}


@pytest.mark.parametrize("given", GOOD, ids=lambda one: CommandType.Name(one.command_type))
def test_a_whole_command_has_its_meaning(given):
    """That of its type, also after a trip over the wire."""
    assert check_command(AdaptationCommand.FromString(given.SerializeToString())) is MEANINGS[given.command_type]


@pytest.mark.parametrize(("given", "why"), BAD, ids=range(len(BAD)))
def test_a_malformed_command_is_refused_with_the_reason(given, why):
    """The text names the type or the field, and what it must be."""
    with pytest.raises(CommandRefused) as caught:
        check_command(given)
    assert why in str(caught.value)


def test_a_command_of_another_version_is_refused():
    """A strategy in the daemon hands over messages that no serializer has seen."""
    with pytest.raises(VersionMismatch, match="no version"):
        check_command(AdaptationCommand())


def test_levels_have_the_runs_order():
    """NOTICE is minor, HALT is critical."""
    assert LEVELS == {
        "NOTICE": m.Level.MINOR,
        "ELEVATED": m.Level.MAJOR,
        "CONSERVATIVE": m.Level.SEVERE,
        "HALT": m.Level.CRITICAL,
    }
