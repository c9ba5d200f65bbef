from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor

class SeedLifecycleStage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEED_STAGE_UNKNOWN: _ClassVar[SeedLifecycleStage]
    SEED_STAGE_DORMANT: _ClassVar[SeedLifecycleStage]
    SEED_STAGE_GERMINATED: _ClassVar[SeedLifecycleStage]
    SEED_STAGE_TRAINING: _ClassVar[SeedLifecycleStage]
    SEED_STAGE_BLENDING: _ClassVar[SeedLifecycleStage]
    SEED_STAGE_SHADOWING: _ClassVar[SeedLifecycleStage]
    SEED_STAGE_PROBATIONARY: _ClassVar[SeedLifecycleStage]
    SEED_STAGE_FOSSILIZED: _ClassVar[SeedLifecycleStage]
    SEED_STAGE_CULLED: _ClassVar[SeedLifecycleStage]
    SEED_STAGE_EMBARGOED: _ClassVar[SeedLifecycleStage]
    SEED_STAGE_RESETTING: _ClassVar[SeedLifecycleStage]
    SEED_STAGE_TERMINATED: _ClassVar[SeedLifecycleStage]

class SeedLifecycleGate(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEED_GATE_UNKNOWN: _ClassVar[SeedLifecycleGate]
    SEED_GATE_G0_SANITY: _ClassVar[SeedLifecycleGate]
    SEED_GATE_G1_GRADIENT_HEALTH: _ClassVar[SeedLifecycleGate]
    SEED_GATE_G2_STABILITY: _ClassVar[SeedLifecycleGate]
    SEED_GATE_G3_INTERFACE: _ClassVar[SeedLifecycleGate]
    SEED_GATE_G4_SYSTEM_IMPACT: _ClassVar[SeedLifecycleGate]
    SEED_GATE_G5_RESET: _ClassVar[SeedLifecycleGate]

class HealthStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HEALTH_STATUS_UNKNOWN: _ClassVar[HealthStatus]
    HEALTH_STATUS_HEALTHY: _ClassVar[HealthStatus]
    HEALTH_STATUS_DEGRADED: _ClassVar[HealthStatus]
    HEALTH_STATUS_UNHEALTHY: _ClassVar[HealthStatus]
    HEALTH_STATUS_CRITICAL: _ClassVar[HealthStatus]

class CircuitBreakerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CIRCUIT_STATE_UNKNOWN: _ClassVar[CircuitBreakerState]
    CIRCUIT_STATE_CLOSED: _ClassVar[CircuitBreakerState]
    CIRCUIT_STATE_OPEN: _ClassVar[CircuitBreakerState]
    CIRCUIT_STATE_HALF_OPEN: _ClassVar[CircuitBreakerState]

class MessagePriority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MESSAGE_PRIORITY_UNSPECIFIED: _ClassVar[MessagePriority]
    MESSAGE_PRIORITY_LOW: _ClassVar[MessagePriority]
    MESSAGE_PRIORITY_NORMAL: _ClassVar[MessagePriority]
    MESSAGE_PRIORITY_HIGH: _ClassVar[MessagePriority]
    MESSAGE_PRIORITY_CRITICAL: _ClassVar[MessagePriority]

class CommandType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMMAND_UNKNOWN: _ClassVar[CommandType]
    COMMAND_SEED: _ClassVar[CommandType]
    COMMAND_ROLLBACK: _ClassVar[CommandType]
    COMMAND_OPTIMIZER: _ClassVar[CommandType]
    COMMAND_CIRCUIT_BREAKER: _ClassVar[CommandType]
    COMMAND_PAUSE: _ClassVar[CommandType]
    COMMAND_EMERGENCY: _ClassVar[CommandType]
    COMMAND_STRUCTURAL_PRUNING: _ClassVar[CommandType]

class SeedOperation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEED_OP_UNKNOWN: _ClassVar[SeedOperation]
    SEED_OP_GERMINATE: _ClassVar[SeedOperation]
    SEED_OP_START_TRAINING: _ClassVar[SeedOperation]
    SEED_OP_START_GRAFTING: _ClassVar[SeedOperation]
    SEED_OP_STABILIZE: _ClassVar[SeedOperation]
    SEED_OP_EVALUATE: _ClassVar[SeedOperation]
    SEED_OP_FINE_TUNE: _ClassVar[SeedOperation]
    SEED_OP_FOSSILIZE: _ClassVar[SeedOperation]
    SEED_OP_CULL: _ClassVar[SeedOperation]
    SEED_OP_CANCEL: _ClassVar[SeedOperation]

class EmergencyLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EMERGENCY_LEVEL_UNSPECIFIED: _ClassVar[EmergencyLevel]
    EMERGENCY_LEVEL_NOTICE: _ClassVar[EmergencyLevel]
    EMERGENCY_LEVEL_ELEVATED: _ClassVar[EmergencyLevel]
    EMERGENCY_LEVEL_CONSERVATIVE: _ClassVar[EmergencyLevel]
    EMERGENCY_LEVEL_HALT: _ClassVar[EmergencyLevel]

class TelemetryLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TELEMETRY_LEVEL_UNSPECIFIED: _ClassVar[TelemetryLevel]
    TELEMETRY_LEVEL_INFO: _ClassVar[TelemetryLevel]
    TELEMETRY_LEVEL_WARNING: _ClassVar[TelemetryLevel]
    TELEMETRY_LEVEL_ERROR: _ClassVar[TelemetryLevel]
    TELEMETRY_LEVEL_CRITICAL: _ClassVar[TelemetryLevel]

class DeliveryGuarantee(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DELIVERY_GUARANTEE_UNKNOWN: _ClassVar[DeliveryGuarantee]
    DELIVERY_GUARANTEE_AT_LEAST_ONCE: _ClassVar[DeliveryGuarantee]
    DELIVERY_GUARANTEE_AT_MOST_ONCE: _ClassVar[DeliveryGuarantee]
    DELIVERY_GUARANTEE_EXACTLY_ONCE: _ClassVar[DeliveryGuarantee]

class FieldReportOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FIELD_REPORT_OUTCOME_UNSPECIFIED: _ClassVar[FieldReportOutcome]
    FIELD_REPORT_OUTCOME_SUCCESS: _ClassVar[FieldReportOutcome]
    FIELD_REPORT_OUTCOME_NEUTRAL: _ClassVar[FieldReportOutcome]
    FIELD_REPORT_OUTCOME_REGRESSION: _ClassVar[FieldReportOutcome]
    FIELD_REPORT_OUTCOME_ABORTED: _ClassVar[FieldReportOutcome]

class PruningPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRUNING_PHASE_UNKNOWN: _ClassVar[PruningPhase]
    PRUNING_PHASE_VALIDATION_ONLY: _ClassVar[PruningPhase]
    PRUNING_PHASE_ACTIVE_PRUNING: _ClassVar[PruningPhase]
    PRUNING_PHASE_DISABLED: _ClassVar[PruningPhase]

class PruningDecision(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRUNING_DECISION_UNKNOWN: _ClassVar[PruningDecision]
    PRUNING_DECISION_GO: _ClassVar[PruningDecision]
    PRUNING_DECISION_NO_GO: _ClassVar[PruningDecision]
    PRUNING_DECISION_CONDITIONAL_GO: _ClassVar[PruningDecision]

class PruningMaskType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRUNING_MASK_TYPE_UNKNOWN: _ClassVar[PruningMaskType]
    PRUNING_MASK_TYPE_CHANNEL: _ClassVar[PruningMaskType]
    PRUNING_MASK_TYPE_ATTENTION_HEAD: _ClassVar[PruningMaskType]
    PRUNING_MASK_TYPE_LAYER: _ClassVar[PruningMaskType]
    PRUNING_MASK_TYPE_UNSTRUCTURED: _ClassVar[PruningMaskType]

class PruningOperation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRUNING_OPERATION_UNKNOWN: _ClassVar[PruningOperation]
    PRUNING_OPERATION_ANALYZE: _ClassVar[PruningOperation]
    PRUNING_OPERATION_VALIDATE: _ClassVar[PruningOperation]
    PRUNING_OPERATION_APPLY: _ClassVar[PruningOperation]
    PRUNING_OPERATION_ROLLBACK: _ClassVar[PruningOperation]
    PRUNING_OPERATION_PHASE_TRANSITION: _ClassVar[PruningOperation]
SEED_STAGE_UNKNOWN: SeedLifecycleStage
SEED_STAGE_DORMANT: SeedLifecycleStage
SEED_STAGE_GERMINATED: SeedLifecycleStage
SEED_STAGE_TRAINING: SeedLifecycleStage
SEED_STAGE_BLENDING: SeedLifecycleStage
SEED_STAGE_SHADOWING: SeedLifecycleStage
SEED_STAGE_PROBATIONARY: SeedLifecycleStage
SEED_STAGE_FOSSILIZED: SeedLifecycleStage
SEED_STAGE_CULLED: SeedLifecycleStage
SEED_STAGE_EMBARGOED: SeedLifecycleStage
SEED_STAGE_RESETTING: SeedLifecycleStage
SEED_STAGE_TERMINATED: SeedLifecycleStage
SEED_GATE_UNKNOWN: SeedLifecycleGate
SEED_GATE_G0_SANITY: SeedLifecycleGate
SEED_GATE_G1_GRADIENT_HEALTH: SeedLifecycleGate
SEED_GATE_G2_STABILITY: SeedLifecycleGate
SEED_GATE_G3_INTERFACE: SeedLifecycleGate
SEED_GATE_G4_SYSTEM_IMPACT: SeedLifecycleGate
SEED_GATE_G5_RESET: SeedLifecycleGate
HEALTH_STATUS_UNKNOWN: HealthStatus
HEALTH_STATUS_HEALTHY: HealthStatus
HEALTH_STATUS_DEGRADED: HealthStatus
HEALTH_STATUS_UNHEALTHY: HealthStatus
HEALTH_STATUS_CRITICAL: HealthStatus
CIRCUIT_STATE_UNKNOWN: CircuitBreakerState
CIRCUIT_STATE_CLOSED: CircuitBreakerState
CIRCUIT_STATE_OPEN: CircuitBreakerState
CIRCUIT_STATE_HALF_OPEN: CircuitBreakerState
MESSAGE_PRIORITY_UNSPECIFIED: MessagePriority
MESSAGE_PRIORITY_LOW: MessagePriority
MESSAGE_PRIORITY_NORMAL: MessagePriority
MESSAGE_PRIORITY_HIGH: MessagePriority
MESSAGE_PRIORITY_CRITICAL: MessagePriority
COMMAND_UNKNOWN: CommandType
COMMAND_SEED: CommandType
COMMAND_ROLLBACK: CommandType
COMMAND_OPTIMIZER: CommandType
COMMAND_CIRCUIT_BREAKER: CommandType
COMMAND_PAUSE: CommandType
COMMAND_EMERGENCY: CommandType
COMMAND_STRUCTURAL_PRUNING: CommandType
SEED_OP_UNKNOWN: SeedOperation
SEED_OP_GERMINATE: SeedOperation
SEED_OP_START_TRAINING: SeedOperation
SEED_OP_START_GRAFTING: SeedOperation
SEED_OP_STABILIZE: SeedOperation
SEED_OP_EVALUATE: SeedOperation
SEED_OP_FINE_TUNE: SeedOperation
SEED_OP_FOSSILIZE: SeedOperation
SEED_OP_CULL: SeedOperation
SEED_OP_CANCEL: SeedOperation
EMERGENCY_LEVEL_UNSPECIFIED: EmergencyLevel
EMERGENCY_LEVEL_NOTICE: EmergencyLevel
EMERGENCY_LEVEL_ELEVATED: EmergencyLevel
EMERGENCY_LEVEL_CONSERVATIVE: EmergencyLevel
EMERGENCY_LEVEL_HALT: EmergencyLevel
TELEMETRY_LEVEL_UNSPECIFIED: TelemetryLevel
TELEMETRY_LEVEL_INFO: TelemetryLevel
TELEMETRY_LEVEL_WARNING: TelemetryLevel
TELEMETRY_LEVEL_ERROR: TelemetryLevel
TELEMETRY_LEVEL_CRITICAL: TelemetryLevel
DELIVERY_GUARANTEE_UNKNOWN: DeliveryGuarantee
DELIVERY_GUARANTEE_AT_LEAST_ONCE: DeliveryGuarantee
DELIVERY_GUARANTEE_AT_MOST_ONCE: DeliveryGuarantee
DELIVERY_GUARANTEE_EXACTLY_ONCE: DeliveryGuarantee
FIELD_REPORT_OUTCOME_UNSPECIFIED: FieldReportOutcome
FIELD_REPORT_OUTCOME_SUCCESS: FieldReportOutcome
FIELD_REPORT_OUTCOME_NEUTRAL: FieldReportOutcome
FIELD_REPORT_OUTCOME_REGRESSION: FieldReportOutcome
FIELD_REPORT_OUTCOME_ABORTED: FieldReportOutcome
PRUNING_PHASE_UNKNOWN: PruningPhase
PRUNING_PHASE_VALIDATION_ONLY: PruningPhase
PRUNING_PHASE_ACTIVE_PRUNING: PruningPhase
PRUNING_PHASE_DISABLED: PruningPhase
PRUNING_DECISION_UNKNOWN: PruningDecision
PRUNING_DECISION_GO: PruningDecision
PRUNING_DECISION_NO_GO: PruningDecision
PRUNING_DECISION_CONDITIONAL_GO: PruningDecision
PRUNING_MASK_TYPE_UNKNOWN: PruningMaskType
PRUNING_MASK_TYPE_CHANNEL: PruningMaskType
PRUNING_MASK_TYPE_ATTENTION_HEAD: PruningMaskType
PRUNING_MASK_TYPE_LAYER: PruningMaskType
PRUNING_MASK_TYPE_UNSTRUCTURED: PruningMaskType
PRUNING_OPERATION_UNKNOWN: PruningOperation
PRUNING_OPERATION_ANALYZE: PruningOperation
PRUNING_OPERATION_VALIDATE: PruningOperation
PRUNING_OPERATION_APPLY: PruningOperation
PRUNING_OPERATION_ROLLBACK: PruningOperation
PRUNING_OPERATION_PHASE_TRANSITION: PruningOperation
