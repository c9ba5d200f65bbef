"""The messages keep their numbers, and are written in buf's style except where the contract fixes another.

Exceptions: the folder is not the package's name, some enums have a shorter prefix than their name, and some zero values
end in UNKNOWN.
"""

from __future__ import annotations

import re

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto

from tests.house.protos import described
from tolariad import leyline
from tolariad.core import messages as m
from tolariad.core.calc.health.breaker import BreakerState
from tolariad.leyline.commands import LEVELS
from tolariad.leyline.v1 import enums_pb2 as enums
from tolariad.storage.manifest import PRUNING_DISABLED

FILES = described()
ENUMS = {enum.name: enum for file in FILES for enum in file.enum_type}
MESSAGES = {message.name: message for file in FILES for message in file.message_type}
WHERE = {one.name: file.name for file in FILES for one in (*file.enum_type, *file.message_type)}
# Values from 0 on, without their prefix. Numbers are never reused: lists only grow at their end.
WIRE = {
    "SeedLifecycleStage": "UNKNOWN DORMANT GERMINATED TRAINING BLENDING SHADOWING PROBATIONARY FOSSILIZED CULLED "
    "EMBARGOED RESETTING TERMINATED",
    "SeedLifecycleGate": "UNKNOWN G0_SANITY G1_GRADIENT_HEALTH G2_STABILITY G3_INTERFACE G4_SYSTEM_IMPACT G5_RESET",
    "HealthStatus": "UNKNOWN HEALTHY DEGRADED UNHEALTHY CRITICAL",
    "CircuitBreakerState": "UNKNOWN CLOSED OPEN HALF_OPEN",
    "MessagePriority": "UNSPECIFIED LOW NORMAL HIGH CRITICAL",
    "CommandType": "UNKNOWN SEED ROLLBACK OPTIMIZER CIRCUIT_BREAKER PAUSE EMERGENCY STRUCTURAL_PRUNING",
    "SeedOperation": "UNKNOWN GERMINATE START_TRAINING START_GRAFTING STABILIZE EVALUATE FINE_TUNE FOSSILIZE "
    "CULL CANCEL",
    "EmergencyLevel": "UNSPECIFIED NOTICE ELEVATED CONSERVATIVE HALT",
    "TelemetryLevel": "UNSPECIFIED INFO WARNING ERROR CRITICAL",
    "DeliveryGuarantee": "UNKNOWN AT_LEAST_ONCE AT_MOST_ONCE EXACTLY_ONCE",
    "FieldReportOutcome": "UNSPECIFIED SUCCESS NEUTRAL REGRESSION ABORTED",
    "PruningPhase": "UNKNOWN VALIDATION_ONLY ACTIVE_PRUNING DISABLED",
    "PruningDecision": "UNKNOWN GO NO_GO CONDITIONAL_GO",
    "PruningMaskType": "UNKNOWN CHANNEL ATTENTION_HEAD LAYER UNSTRUCTURED",
    "PruningOperation": "UNKNOWN ANALYZE VALIDATE APPLY ROLLBACK PHASE_TRANSITION",
}
# Prefixes that are not the enum's name.
PREFIXES = {
    "SeedLifecycleStage": "SEED_STAGE_",
    "SeedLifecycleGate": "SEED_GATE_",
    "CircuitBreakerState": "CIRCUIT_STATE_",
    "CommandType": "COMMAND_",
    "SeedOperation": "SEED_OP_",
}
# Fields by number, in order of their declaration.
FIELDS = {
    "SystemStatePacket": "1 version 2 current_epoch 3 validation_accuracy 4 validation_loss 5 timestamp_ns "
    "6 hardware_context 7 training_metrics 8 seed_states 9 packet_id 10 global_step 11 training_loss "
    "12 source_subsystem 13 training_run_id 14 experiment_name",
    "HardwareContext": "1 device_type 2 device_id 3 total_memory_gb 4 available_memory_gb 5 temperature_celsius "
    "6 utilization_percent 7 compute_capability",
    "SeedState": "1 seed_id 2 stage 3 gradient_norm 4 learning_rate 5 layer_depth 6 metrics 7 age_epochs 8 risk_score",
    "AdaptationCommand": "1 version 2 command_id 3 command_type 4 target_seed_id 5 execution_deadline_ms 6 issued_at "
    "7 issued_by 10 seed_operation 11 optimizer_adjustment 12 circuit_breaker 13 rollback_payload 20 annotations",
    "TelemetryPacket": "1 packet_id 2 timestamp 3 source_subsystem 4 level 10 metrics 20 events 30 spans "
    "40 system_health",
    "EventEnvelope": "1 event_id 2 event_type 3 source_subsystem 4 created_at 5 processing_deadline 6 ttl 10 payload "
    "11 payload_type 12 content_encoding 20 priority 21 routing_keys 22 correlation_id 30 delivery_guarantee "
    "31 max_attempts 32 current_attempt",
    "EmergencySignal": "1 version 2 level 3 reason 4 origin 5 triggered_at 6 monotonic_time_ms 7 run_id 8 attributes "
    "9 payload_checksum",
    "StructuralPruningRequest": "1 request_id 2 checkpoint_id 3 epoch 4 phase 5 importance_stats 6 config "
    "7 safety_constraints 10 created_at 11 source_subsystem 12 timeout 13 idempotency_key",
    "StructuralPruningResponse": "1 request_id 2 response_id 3 validation_passed 4 analysis_result 5 pruning_masks "
    "6 decision_report 7 safety_report 8 rollback_required 9 rollback_reason 10 completed_at 11 source_subsystem "
    "12 processing_time_ms 13 idempotency_key 14 pruning_metadata",
}
SNAKE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
PASCAL = re.compile(r"([A-Z][a-z0-9]*)+")


def prefix_of(enum: str) -> str:
    """Return the prefix that an enum's values must have: buf's, or that of the contract."""
    return PREFIXES.get(enum, re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", enum).upper() + "_")


@pytest.mark.parametrize("name", WIRE)
def test_enum_values_keep_their_numbers(name):
    """A number that changed its meaning would be read wrongly by every other subsystem."""
    values = [(value.number, value.name) for value in ENUMS[name].value]

    assert values == [(n, f"{prefix_of(name)}{value}") for n, value in enumerate(WIRE[name].split())]


@pytest.mark.parametrize("name", FIELDS)
def test_fields_keep_their_numbers(name):
    """A message of the sources has their fields, and no others."""
    assert " ".join(f"{field.number} {field.name}" for field in MESSAGES[name].field) == FIELDS[name]


def test_every_file_is_in_bufs_style():
    """Name in lower_snake_case, syntax and versioned package given, imports used, neither public nor weak."""
    for file in FILES:
        assert SNAKE.fullmatch(file.name.rpartition("/")[2].removesuffix(".proto"))
        assert (file.syntax, file.package) == ("proto3", "esper.leyline.v1")
        assert not [*file.public_dependency, *file.weak_dependency]
        # Each file of Google's has one message that we use, named like the file.
        used = {WHERE.get(name, f"google/protobuf/{name.lower()}.proto") for name in types_of(file)}
        assert set(file.dependency) == used - {file.name}


def types_of(file):
    """Return the last names of the messages and enums that the fields of a file have."""
    scopes = [one for message in file.message_type for one in (message, *message.nested_type)]
    names = {field.type_name.rpartition(".")[2] for scope in scopes for field in scope.field}
    return {name for name in names if name and not name.endswith("Entry")}


def test_every_enum_is_in_bufs_style():
    """Names in PascalCase, values in UPPER_SNAKE_CASE with their prefix, the first one zero, no alias."""
    for name, enum in ENUMS.items():
        names = [value.name for value in enum.value]
        assert PASCAL.fullmatch(name)
        assert enum.value[0].number == 0
        assert enum.value[0].name in {f"{prefix_of(name)}UNSPECIFIED", f"{prefix_of(name)}UNKNOWN"}
        assert not enum.options.allow_alias
        assert [one for one in names if not one.startswith(prefix_of(name)) or not SNAKE.fullmatch(one.lower())] == []
        # Enums of our own have buf's suffix.
        assert name in WIRE or names[0].endswith("_UNSPECIFIED")


def test_every_message_is_in_bufs_style():
    """Names in PascalCase, fields and oneofs in lower_snake_case, no required field, none called descriptor."""
    for name, message in MESSAGES.items():
        assert PASCAL.fullmatch(name)
        assert [field.name for field in message.field if not SNAKE.fullmatch(field.name)] == []
        assert "descriptor" not in {field.name for field in message.field}
        assert FieldDescriptorProto.LABEL_REQUIRED not in {field.label for field in message.field}
        # The compiler makes a oneof of its own for each optional field, with a leading underscore.
        assert [one.name for one in message.oneof_decl if not SNAKE.fullmatch(one.name.lstrip("_"))] == []


def test_the_packet_keeps_a_window_for_extensions():
    """Fields 100 to 199 are reserved; the end of a range is exclusive."""
    assert [(one.start, one.end) for one in MESSAGES["SystemStatePacket"].reserved_range] == [(100, 200)]


def test_every_message_and_enum_is_a_name_of_the_package():
    """Programs import them from tolariad.leyline."""
    assert sorted(ENUMS.keys() | MESSAGES.keys()) == sorted(set(leyline.__all__) & (ENUMS.keys() | MESSAGES.keys()))
    assert [name for name in leyline.__all__ if not hasattr(leyline, name)] == []


def test_words_of_the_run_have_leylines_numbers():
    """Health, breakers, emergencies and the phase of pruning mean the same in the journal and in messages."""
    for one in m.HealthStatus:
        assert enums.HealthStatus.Value(f"HEALTH_STATUS_{one.name}") == one.value
    assert {f"CIRCUIT_STATE_{one.name}" for one in BreakerState} == set(enums.CircuitBreakerState.keys()[1:])
    assert [f"EMERGENCY_LEVEL_{name}" for name in LEVELS] == enums.EmergencyLevel.keys()[1:]
    assert enums.PRUNING_PHASE_DISABLED == PRUNING_DISABLED
