from tolariad.leyline.v1 import enums_pb2 as _enums_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HardwareContext(_message.Message):
    __slots__ = ("device_type", "device_id", "total_memory_gb", "available_memory_gb", "temperature_celsius", "utilization_percent", "compute_capability")
    DEVICE_TYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    TOTAL_MEMORY_GB_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_MEMORY_GB_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_CELSIUS_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    device_type: str
    device_id: str
    total_memory_gb: float
    available_memory_gb: float
    temperature_celsius: float
    utilization_percent: float
    compute_capability: int
    def __init__(self, device_type: _Optional[str] = ..., device_id: _Optional[str] = ..., total_memory_gb: _Optional[float] = ..., available_memory_gb: _Optional[float] = ..., temperature_celsius: _Optional[float] = ..., utilization_percent: _Optional[float] = ..., compute_capability: _Optional[int] = ...) -> None: ...

class SeedState(_message.Message):
    __slots__ = ("seed_id", "stage", "gradient_norm", "learning_rate", "layer_depth", "metrics", "age_epochs", "risk_score")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    SEED_ID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_NORM_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    LAYER_DEPTH_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    AGE_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    RISK_SCORE_FIELD_NUMBER: _ClassVar[int]
    seed_id: str
    stage: _enums_pb2.SeedLifecycleStage
    gradient_norm: float
    learning_rate: float
    layer_depth: int
    metrics: _containers.ScalarMap[str, float]
    age_epochs: int
    risk_score: float
    def __init__(self, seed_id: _Optional[str] = ..., stage: _Optional[_Union[_enums_pb2.SeedLifecycleStage, str]] = ..., gradient_norm: _Optional[float] = ..., learning_rate: _Optional[float] = ..., layer_depth: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ..., age_epochs: _Optional[int] = ..., risk_score: _Optional[float] = ...) -> None: ...

class SystemStatePacket(_message.Message):
    __slots__ = ("version", "current_epoch", "validation_accuracy", "validation_loss", "timestamp_ns", "hardware_context", "training_metrics", "seed_states", "packet_id", "global_step", "training_loss", "source_subsystem", "training_run_id", "experiment_name")
    class TrainingMetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CURRENT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_ACCURACY_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_LOSS_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_NS_FIELD_NUMBER: _ClassVar[int]
    HARDWARE_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    TRAINING_METRICS_FIELD_NUMBER: _ClassVar[int]
    SEED_STATES_FIELD_NUMBER: _ClassVar[int]
    PACKET_ID_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    TRAINING_LOSS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SUBSYSTEM_FIELD_NUMBER: _ClassVar[int]
    TRAINING_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    EXPERIMENT_NAME_FIELD_NUMBER: _ClassVar[int]
    version: int
    current_epoch: int
    validation_accuracy: float
    validation_loss: float
    timestamp_ns: int
    hardware_context: HardwareContext
    training_metrics: _containers.ScalarMap[str, float]
    seed_states: _containers.RepeatedCompositeFieldContainer[SeedState]
    packet_id: str
    global_step: int
    training_loss: float
    source_subsystem: str
    training_run_id: str
    experiment_name: str
    def __init__(self, version: _Optional[int] = ..., current_epoch: _Optional[int] = ..., validation_accuracy: _Optional[float] = ..., validation_loss: _Optional[float] = ..., timestamp_ns: _Optional[int] = ..., hardware_context: _Optional[_Union[HardwareContext, _Mapping]] = ..., training_metrics: _Optional[_Mapping[str, float]] = ..., seed_states: _Optional[_Iterable[_Union[SeedState, _Mapping]]] = ..., packet_id: _Optional[str] = ..., global_step: _Optional[int] = ..., training_loss: _Optional[float] = ..., source_subsystem: _Optional[str] = ..., training_run_id: _Optional[str] = ..., experiment_name: _Optional[str] = ...) -> None: ...
