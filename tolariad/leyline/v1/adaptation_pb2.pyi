import datetime

from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from tolariad.leyline.v1 import enums_pb2 as _enums_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CommandSeedOperation(_message.Message):
    __slots__ = ("operation", "blueprint_id", "parameters")
    class ParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    BLUEPRINT_ID_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    operation: _enums_pb2.SeedOperation
    blueprint_id: str
    parameters: _containers.ScalarMap[str, float]
    def __init__(self, operation: _Optional[_Union[_enums_pb2.SeedOperation, str]] = ..., blueprint_id: _Optional[str] = ..., parameters: _Optional[_Mapping[str, float]] = ...) -> None: ...

class CommandOptimizerAdjustment(_message.Message):
    __slots__ = ("optimizer_id", "hyperparameters")
    class HyperparametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    OPTIMIZER_ID_FIELD_NUMBER: _ClassVar[int]
    HYPERPARAMETERS_FIELD_NUMBER: _ClassVar[int]
    optimizer_id: str
    hyperparameters: _containers.ScalarMap[str, float]
    def __init__(self, optimizer_id: _Optional[str] = ..., hyperparameters: _Optional[_Mapping[str, float]] = ...) -> None: ...

class CommandCircuitBreaker(_message.Message):
    __slots__ = ("desired_state", "rationale")
    DESIRED_STATE_FIELD_NUMBER: _ClassVar[int]
    RATIONALE_FIELD_NUMBER: _ClassVar[int]
    desired_state: _enums_pb2.CircuitBreakerState
    rationale: str
    def __init__(self, desired_state: _Optional[_Union[_enums_pb2.CircuitBreakerState, str]] = ..., rationale: _Optional[str] = ...) -> None: ...

class AdaptationCommand(_message.Message):
    __slots__ = ("version", "command_id", "command_type", "target_seed_id", "execution_deadline_ms", "issued_at", "issued_by", "seed_operation", "optimizer_adjustment", "circuit_breaker", "rollback_payload", "annotations")
    class AnnotationsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    COMMAND_TYPE_FIELD_NUMBER: _ClassVar[int]
    TARGET_SEED_ID_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    ISSUED_AT_FIELD_NUMBER: _ClassVar[int]
    ISSUED_BY_FIELD_NUMBER: _ClassVar[int]
    SEED_OPERATION_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_ADJUSTMENT_FIELD_NUMBER: _ClassVar[int]
    CIRCUIT_BREAKER_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    ANNOTATIONS_FIELD_NUMBER: _ClassVar[int]
    version: int
    command_id: str
    command_type: _enums_pb2.CommandType
    target_seed_id: str
    execution_deadline_ms: int
    issued_at: _timestamp_pb2.Timestamp
    issued_by: str
    seed_operation: CommandSeedOperation
    optimizer_adjustment: CommandOptimizerAdjustment
    circuit_breaker: CommandCircuitBreaker
    rollback_payload: _struct_pb2.Struct
    annotations: _containers.ScalarMap[str, str]
    def __init__(self, version: _Optional[int] = ..., command_id: _Optional[str] = ..., command_type: _Optional[_Union[_enums_pb2.CommandType, str]] = ..., target_seed_id: _Optional[str] = ..., execution_deadline_ms: _Optional[int] = ..., issued_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., issued_by: _Optional[str] = ..., seed_operation: _Optional[_Union[CommandSeedOperation, _Mapping]] = ..., optimizer_adjustment: _Optional[_Union[CommandOptimizerAdjustment, _Mapping]] = ..., circuit_breaker: _Optional[_Union[CommandCircuitBreaker, _Mapping]] = ..., rollback_payload: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., annotations: _Optional[_Mapping[str, str]] = ...) -> None: ...
