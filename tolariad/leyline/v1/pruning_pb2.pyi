import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from tolariad.leyline.v1 import enums_pb2 as _enums_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ImportanceEstimator(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    IMPORTANCE_ESTIMATOR_UNSPECIFIED: _ClassVar[ImportanceEstimator]
    IMPORTANCE_ESTIMATOR_MAGNITUDE: _ClassVar[ImportanceEstimator]
    IMPORTANCE_ESTIMATOR_GRAD_L2: _ClassVar[ImportanceEstimator]
    IMPORTANCE_ESTIMATOR_TAYLOR1: _ClassVar[ImportanceEstimator]
    IMPORTANCE_ESTIMATOR_FISHER_DIAG: _ClassVar[ImportanceEstimator]
    IMPORTANCE_ESTIMATOR_ACT_FREQ: _ClassVar[ImportanceEstimator]

class PruningMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRUNING_MODE_UNSPECIFIED: _ClassVar[PruningMode]
    PRUNING_MODE_LOGICAL: _ClassVar[PruningMode]
    PRUNING_MODE_PHYSICAL: _ClassVar[PruningMode]
IMPORTANCE_ESTIMATOR_UNSPECIFIED: ImportanceEstimator
IMPORTANCE_ESTIMATOR_MAGNITUDE: ImportanceEstimator
IMPORTANCE_ESTIMATOR_GRAD_L2: ImportanceEstimator
IMPORTANCE_ESTIMATOR_TAYLOR1: ImportanceEstimator
IMPORTANCE_ESTIMATOR_FISHER_DIAG: ImportanceEstimator
IMPORTANCE_ESTIMATOR_ACT_FREQ: ImportanceEstimator
PRUNING_MODE_UNSPECIFIED: PruningMode
PRUNING_MODE_LOGICAL: PruningMode
PRUNING_MODE_PHYSICAL: PruningMode

class ParamImportance(_message.Message):
    __slots__ = ("uuid", "path", "shape", "dtype", "granularity", "count", "sum", "sum_sq", "ema", "last", "estimator")
    UUID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    GRANULARITY_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    SUM_SQ_FIELD_NUMBER: _ClassVar[int]
    EMA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    ESTIMATOR_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    path: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    granularity: _enums_pb2.PruningMaskType
    count: int
    sum: _containers.RepeatedScalarFieldContainer[float]
    sum_sq: _containers.RepeatedScalarFieldContainer[float]
    ema: _containers.RepeatedScalarFieldContainer[float]
    last: _containers.RepeatedScalarFieldContainer[float]
    estimator: ImportanceEstimator
    def __init__(self, uuid: _Optional[str] = ..., path: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ..., granularity: _Optional[_Union[_enums_pb2.PruningMaskType, str]] = ..., count: _Optional[int] = ..., sum: _Optional[_Iterable[float]] = ..., sum_sq: _Optional[_Iterable[float]] = ..., ema: _Optional[_Iterable[float]] = ..., last: _Optional[_Iterable[float]] = ..., estimator: _Optional[_Union[ImportanceEstimator, str]] = ...) -> None: ...

class ImportanceStatistics(_message.Message):
    __slots__ = ("version", "run_id", "epoch", "global_step", "window_steps", "parameters", "content_sha256")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    WINDOW_STEPS_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_SHA256_FIELD_NUMBER: _ClassVar[int]
    version: int
    run_id: str
    epoch: int
    global_step: int
    window_steps: int
    parameters: _containers.RepeatedCompositeFieldContainer[ParamImportance]
    content_sha256: str
    def __init__(self, version: _Optional[int] = ..., run_id: _Optional[str] = ..., epoch: _Optional[int] = ..., global_step: _Optional[int] = ..., window_steps: _Optional[int] = ..., parameters: _Optional[_Iterable[_Union[ParamImportance, _Mapping]]] = ..., content_sha256: _Optional[str] = ...) -> None: ...

class EstimatorWeight(_message.Message):
    __slots__ = ("estimator", "weight")
    ESTIMATOR_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    estimator: ImportanceEstimator
    weight: float
    def __init__(self, estimator: _Optional[_Union[ImportanceEstimator, str]] = ..., weight: _Optional[float] = ...) -> None: ...

class UnitSet(_message.Message):
    __slots__ = ("group", "indices", "scores")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    group: str
    indices: _containers.RepeatedScalarFieldContainer[int]
    scores: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, group: _Optional[str] = ..., indices: _Optional[_Iterable[int]] = ..., scores: _Optional[_Iterable[float]] = ...) -> None: ...

class ParameterCut(_message.Message):
    __slots__ = ("parameter", "dimension", "indices")
    PARAMETER_FIELD_NUMBER: _ClassVar[int]
    DIMENSION_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    parameter: int
    dimension: int
    indices: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, parameter: _Optional[int] = ..., dimension: _Optional[int] = ..., indices: _Optional[_Iterable[int]] = ...) -> None: ...

class ParameterShape(_message.Message):
    __slots__ = ("sizes",)
    SIZES_FIELD_NUMBER: _ClassVar[int]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sizes: _Optional[_Iterable[int]] = ...) -> None: ...

class AnalysedGroup(_message.Message):
    __slots__ = ("name", "kind", "width", "channels", "cuts")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    CUTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: _enums_pb2.PruningMaskType
    width: int
    channels: int
    cuts: _containers.RepeatedCompositeFieldContainer[ParameterCut]
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[_Union[_enums_pb2.PruningMaskType, str]] = ..., width: _Optional[int] = ..., channels: _Optional[int] = ..., cuts: _Optional[_Iterable[_Union[ParameterCut, _Mapping]]] = ...) -> None: ...

class PruningConfiguration(_message.Message):
    __slots__ = ("budget_fraction", "cumulative_cap", "estimator_weights", "min_channels", "min_heads", "max_layer_fraction", "redundancy_threshold", "min_samples", "mode", "cycle", "manifest_blake3", "masked", "removed_units", "pruned_channels", "avoid", "former_importance", "importance_output", "pruned_parameters", "removed_parameters")
    class RemovedUnitsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    BUDGET_FRACTION_FIELD_NUMBER: _ClassVar[int]
    CUMULATIVE_CAP_FIELD_NUMBER: _ClassVar[int]
    ESTIMATOR_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    MIN_CHANNELS_FIELD_NUMBER: _ClassVar[int]
    MIN_HEADS_FIELD_NUMBER: _ClassVar[int]
    MAX_LAYER_FRACTION_FIELD_NUMBER: _ClassVar[int]
    REDUNDANCY_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    MIN_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_BLAKE3_FIELD_NUMBER: _ClassVar[int]
    MASKED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_UNITS_FIELD_NUMBER: _ClassVar[int]
    PRUNED_CHANNELS_FIELD_NUMBER: _ClassVar[int]
    AVOID_FIELD_NUMBER: _ClassVar[int]
    FORMER_IMPORTANCE_FIELD_NUMBER: _ClassVar[int]
    IMPORTANCE_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    PRUNED_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    budget_fraction: float
    cumulative_cap: float
    estimator_weights: _containers.RepeatedCompositeFieldContainer[EstimatorWeight]
    min_channels: int
    min_heads: int
    max_layer_fraction: float
    redundancy_threshold: float
    min_samples: int
    mode: PruningMode
    cycle: int
    manifest_blake3: str
    masked: _containers.RepeatedCompositeFieldContainer[UnitSet]
    removed_units: _containers.ScalarMap[str, int]
    pruned_channels: int
    avoid: _containers.RepeatedCompositeFieldContainer[UnitSet]
    former_importance: str
    importance_output: str
    pruned_parameters: int
    removed_parameters: int
    def __init__(self, budget_fraction: _Optional[float] = ..., cumulative_cap: _Optional[float] = ..., estimator_weights: _Optional[_Iterable[_Union[EstimatorWeight, _Mapping]]] = ..., min_channels: _Optional[int] = ..., min_heads: _Optional[int] = ..., max_layer_fraction: _Optional[float] = ..., redundancy_threshold: _Optional[float] = ..., min_samples: _Optional[int] = ..., mode: _Optional[_Union[PruningMode, str]] = ..., cycle: _Optional[int] = ..., manifest_blake3: _Optional[str] = ..., masked: _Optional[_Iterable[_Union[UnitSet, _Mapping]]] = ..., removed_units: _Optional[_Mapping[str, int]] = ..., pruned_channels: _Optional[int] = ..., avoid: _Optional[_Iterable[_Union[UnitSet, _Mapping]]] = ..., former_importance: _Optional[str] = ..., importance_output: _Optional[str] = ..., pruned_parameters: _Optional[int] = ..., removed_parameters: _Optional[int] = ...) -> None: ...

class PruningMask(_message.Message):
    __slots__ = ("param_uuid", "param_path", "mask_type", "shape", "packed_bits", "kept_count", "total_count", "confidence", "sha256")
    PARAM_UUID_FIELD_NUMBER: _ClassVar[int]
    PARAM_PATH_FIELD_NUMBER: _ClassVar[int]
    MASK_TYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    PACKED_BITS_FIELD_NUMBER: _ClassVar[int]
    KEPT_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_COUNT_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    param_uuid: str
    param_path: str
    mask_type: _enums_pb2.PruningMaskType
    shape: _containers.RepeatedScalarFieldContainer[int]
    packed_bits: bytes
    kept_count: int
    total_count: int
    confidence: float
    sha256: str
    def __init__(self, param_uuid: _Optional[str] = ..., param_path: _Optional[str] = ..., mask_type: _Optional[_Union[_enums_pb2.PruningMaskType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., packed_bits: _Optional[bytes] = ..., kept_count: _Optional[int] = ..., total_count: _Optional[int] = ..., confidence: _Optional[float] = ..., sha256: _Optional[str] = ...) -> None: ...

class TensorData(_message.Message):
    __slots__ = ("data", "shape", "dtype")
    DATA_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    def __init__(self, data: _Optional[bytes] = ..., shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ...) -> None: ...

class ChannelImportanceData(_message.Message):
    __slots__ = ("layer_name", "taylor", "magnitude", "activation_frequency", "correlations")
    LAYER_NAME_FIELD_NUMBER: _ClassVar[int]
    TAYLOR_FIELD_NUMBER: _ClassVar[int]
    MAGNITUDE_FIELD_NUMBER: _ClassVar[int]
    ACTIVATION_FREQUENCY_FIELD_NUMBER: _ClassVar[int]
    CORRELATIONS_FIELD_NUMBER: _ClassVar[int]
    layer_name: str
    taylor: _containers.RepeatedScalarFieldContainer[float]
    magnitude: _containers.RepeatedScalarFieldContainer[float]
    activation_frequency: _containers.RepeatedScalarFieldContainer[float]
    correlations: TensorData
    def __init__(self, layer_name: _Optional[str] = ..., taylor: _Optional[_Iterable[float]] = ..., magnitude: _Optional[_Iterable[float]] = ..., activation_frequency: _Optional[_Iterable[float]] = ..., correlations: _Optional[_Union[TensorData, _Mapping]] = ...) -> None: ...

class HeadPair(_message.Message):
    __slots__ = ("kept", "redundant")
    KEPT_FIELD_NUMBER: _ClassVar[int]
    REDUNDANT_FIELD_NUMBER: _ClassVar[int]
    kept: int
    redundant: int
    def __init__(self, kept: _Optional[int] = ..., redundant: _Optional[int] = ...) -> None: ...

class AttentionHeadTarget(_message.Message):
    __slots__ = ("layer_name", "head_indices", "redundancy_pairs", "redundancy_threshold", "head_importance", "attention_entropy")
    LAYER_NAME_FIELD_NUMBER: _ClassVar[int]
    HEAD_INDICES_FIELD_NUMBER: _ClassVar[int]
    REDUNDANCY_PAIRS_FIELD_NUMBER: _ClassVar[int]
    REDUNDANCY_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    HEAD_IMPORTANCE_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_ENTROPY_FIELD_NUMBER: _ClassVar[int]
    layer_name: str
    head_indices: _containers.RepeatedScalarFieldContainer[int]
    redundancy_pairs: _containers.RepeatedCompositeFieldContainer[HeadPair]
    redundancy_threshold: float
    head_importance: _containers.RepeatedScalarFieldContainer[float]
    attention_entropy: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, layer_name: _Optional[str] = ..., head_indices: _Optional[_Iterable[int]] = ..., redundancy_pairs: _Optional[_Iterable[_Union[HeadPair, _Mapping]]] = ..., redundancy_threshold: _Optional[float] = ..., head_importance: _Optional[_Iterable[float]] = ..., attention_entropy: _Optional[_Iterable[float]] = ...) -> None: ...

class StructuralAnalysisResult(_message.Message):
    __slots__ = ("checkpoint_id", "model_hash", "channels", "attention_heads", "layers", "pruning_strategy", "analysis_time_seconds", "parameters_analyzed", "parameters_marked_for_pruning", "cycle", "groups", "units", "refused_modules", "rank_correlation", "sampled_units", "stability", "samples", "importance_bytes", "cpu_seconds", "plan", "parameter_shapes", "channels_marked_for_pruning")
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_HASH_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_HEADS_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    PRUNING_STRATEGY_FIELD_NUMBER: _ClassVar[int]
    ANALYSIS_TIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_ANALYZED_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_MARKED_FOR_PRUNING_FIELD_NUMBER: _ClassVar[int]
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_MODULES_FIELD_NUMBER: _ClassVar[int]
    RANK_CORRELATION_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_UNITS_FIELD_NUMBER: _ClassVar[int]
    STABILITY_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    IMPORTANCE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_SHAPES_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_MARKED_FOR_PRUNING_FIELD_NUMBER: _ClassVar[int]
    checkpoint_id: str
    model_hash: str
    channels: _containers.RepeatedCompositeFieldContainer[ChannelImportanceData]
    attention_heads: _containers.RepeatedCompositeFieldContainer[AttentionHeadTarget]
    layers: _containers.RepeatedScalarFieldContainer[str]
    pruning_strategy: str
    analysis_time_seconds: float
    parameters_analyzed: int
    parameters_marked_for_pruning: int
    cycle: int
    groups: _containers.RepeatedCompositeFieldContainer[AnalysedGroup]
    units: _containers.RepeatedCompositeFieldContainer[UnitSet]
    refused_modules: _containers.RepeatedScalarFieldContainer[str]
    rank_correlation: float
    sampled_units: int
    stability: float
    samples: int
    importance_bytes: int
    cpu_seconds: float
    plan: str
    parameter_shapes: _containers.RepeatedCompositeFieldContainer[ParameterShape]
    channels_marked_for_pruning: int
    def __init__(self, checkpoint_id: _Optional[str] = ..., model_hash: _Optional[str] = ..., channels: _Optional[_Iterable[_Union[ChannelImportanceData, _Mapping]]] = ..., attention_heads: _Optional[_Iterable[_Union[AttentionHeadTarget, _Mapping]]] = ..., layers: _Optional[_Iterable[str]] = ..., pruning_strategy: _Optional[str] = ..., analysis_time_seconds: _Optional[float] = ..., parameters_analyzed: _Optional[int] = ..., parameters_marked_for_pruning: _Optional[int] = ..., cycle: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[AnalysedGroup, _Mapping]]] = ..., units: _Optional[_Iterable[_Union[UnitSet, _Mapping]]] = ..., refused_modules: _Optional[_Iterable[str]] = ..., rank_correlation: _Optional[float] = ..., sampled_units: _Optional[int] = ..., stability: _Optional[float] = ..., samples: _Optional[int] = ..., importance_bytes: _Optional[int] = ..., cpu_seconds: _Optional[float] = ..., plan: _Optional[str] = ..., parameter_shapes: _Optional[_Iterable[_Union[ParameterShape, _Mapping]]] = ..., channels_marked_for_pruning: _Optional[int] = ...) -> None: ...

class PruningDecisionReport(_message.Message):
    __slots__ = ("decision", "reasons", "requested_fraction", "granted_fraction", "confidence", "decided_by", "decided_at")
    DECISION_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_FRACTION_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FRACTION_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    DECIDED_BY_FIELD_NUMBER: _ClassVar[int]
    DECIDED_AT_FIELD_NUMBER: _ClassVar[int]
    decision: _enums_pb2.PruningDecision
    reasons: _containers.RepeatedScalarFieldContainer[str]
    requested_fraction: float
    granted_fraction: float
    confidence: float
    decided_by: str
    decided_at: _timestamp_pb2.Timestamp
    def __init__(self, decision: _Optional[_Union[_enums_pb2.PruningDecision, str]] = ..., reasons: _Optional[_Iterable[str]] = ..., requested_fraction: _Optional[float] = ..., granted_fraction: _Optional[float] = ..., confidence: _Optional[float] = ..., decided_by: _Optional[str] = ..., decided_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class SafetyCheck(_message.Message):
    __slots__ = ("name", "limit", "measured", "passed")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    MEASURED_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    name: str
    limit: float
    measured: float
    passed: bool
    def __init__(self, name: _Optional[str] = ..., limit: _Optional[float] = ..., measured: _Optional[float] = ..., passed: _Optional[bool] = ...) -> None: ...

class MaskMeasurement(_message.Message):
    __slots__ = ("accuracy_before", "accuracy", "gradient_norm_before", "gradient_norm", "layer_share", "spread", "structure", "without_gradient", "memory", "samples", "loss_before")
    ACCURACY_BEFORE_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_NORM_BEFORE_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_NORM_FIELD_NUMBER: _ClassVar[int]
    LAYER_SHARE_FIELD_NUMBER: _ClassVar[int]
    SPREAD_FIELD_NUMBER: _ClassVar[int]
    STRUCTURE_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_GRADIENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    LOSS_BEFORE_FIELD_NUMBER: _ClassVar[int]
    accuracy_before: float
    accuracy: float
    gradient_norm_before: float
    gradient_norm: float
    layer_share: float
    spread: float
    structure: str
    without_gradient: _containers.RepeatedScalarFieldContainer[str]
    memory: float
    samples: int
    loss_before: float
    def __init__(self, accuracy_before: _Optional[float] = ..., accuracy: _Optional[float] = ..., gradient_norm_before: _Optional[float] = ..., gradient_norm: _Optional[float] = ..., layer_share: _Optional[float] = ..., spread: _Optional[float] = ..., structure: _Optional[str] = ..., without_gradient: _Optional[_Iterable[str]] = ..., memory: _Optional[float] = ..., samples: _Optional[int] = ..., loss_before: _Optional[float] = ...) -> None: ...

class StructuralSafetyReport(_message.Message):
    __slots__ = ("safety_validation_passed", "checks", "validation_time_seconds", "measured")
    SAFETY_VALIDATION_PASSED_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_TIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MEASURED_FIELD_NUMBER: _ClassVar[int]
    safety_validation_passed: bool
    checks: _containers.RepeatedCompositeFieldContainer[SafetyCheck]
    validation_time_seconds: float
    measured: MaskMeasurement
    def __init__(self, safety_validation_passed: _Optional[bool] = ..., checks: _Optional[_Iterable[_Union[SafetyCheck, _Mapping]]] = ..., validation_time_seconds: _Optional[float] = ..., measured: _Optional[_Union[MaskMeasurement, _Mapping]] = ...) -> None: ...

class PruningMetadata(_message.Message):
    __slots__ = ("request_id", "operation", "phase", "decision", "pruning_strategy", "cumulative_pruned_fraction", "analysis_time_seconds", "parameters_analyzed", "parameters_marked_for_pruning", "safety_validation_passed", "mask_set_sha256")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    PRUNING_STRATEGY_FIELD_NUMBER: _ClassVar[int]
    CUMULATIVE_PRUNED_FRACTION_FIELD_NUMBER: _ClassVar[int]
    ANALYSIS_TIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_ANALYZED_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_MARKED_FOR_PRUNING_FIELD_NUMBER: _ClassVar[int]
    SAFETY_VALIDATION_PASSED_FIELD_NUMBER: _ClassVar[int]
    MASK_SET_SHA256_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    operation: _enums_pb2.PruningOperation
    phase: _enums_pb2.PruningPhase
    decision: _enums_pb2.PruningDecision
    pruning_strategy: str
    cumulative_pruned_fraction: float
    analysis_time_seconds: float
    parameters_analyzed: int
    parameters_marked_for_pruning: int
    safety_validation_passed: bool
    mask_set_sha256: str
    def __init__(self, request_id: _Optional[str] = ..., operation: _Optional[_Union[_enums_pb2.PruningOperation, str]] = ..., phase: _Optional[_Union[_enums_pb2.PruningPhase, str]] = ..., decision: _Optional[_Union[_enums_pb2.PruningDecision, str]] = ..., pruning_strategy: _Optional[str] = ..., cumulative_pruned_fraction: _Optional[float] = ..., analysis_time_seconds: _Optional[float] = ..., parameters_analyzed: _Optional[int] = ..., parameters_marked_for_pruning: _Optional[int] = ..., safety_validation_passed: _Optional[bool] = ..., mask_set_sha256: _Optional[str] = ...) -> None: ...

class StructuralPruningRequest(_message.Message):
    __slots__ = ("request_id", "checkpoint_id", "epoch", "phase", "importance_stats", "config", "safety_constraints", "created_at", "source_subsystem", "timeout", "idempotency_key")
    class SafetyConstraintsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    IMPORTANCE_STATS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    SAFETY_CONSTRAINTS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SUBSYSTEM_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    checkpoint_id: str
    epoch: int
    phase: _enums_pb2.PruningPhase
    importance_stats: ImportanceStatistics
    config: PruningConfiguration
    safety_constraints: _containers.ScalarMap[str, float]
    created_at: _timestamp_pb2.Timestamp
    source_subsystem: str
    timeout: _duration_pb2.Duration
    idempotency_key: str
    def __init__(self, request_id: _Optional[str] = ..., checkpoint_id: _Optional[str] = ..., epoch: _Optional[int] = ..., phase: _Optional[_Union[_enums_pb2.PruningPhase, str]] = ..., importance_stats: _Optional[_Union[ImportanceStatistics, _Mapping]] = ..., config: _Optional[_Union[PruningConfiguration, _Mapping]] = ..., safety_constraints: _Optional[_Mapping[str, float]] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., source_subsystem: _Optional[str] = ..., timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class StructuralPruningResponse(_message.Message):
    __slots__ = ("request_id", "response_id", "validation_passed", "analysis_result", "pruning_masks", "decision_report", "safety_report", "rollback_required", "rollback_reason", "completed_at", "source_subsystem", "processing_time_ms", "idempotency_key", "pruning_metadata")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_PASSED_FIELD_NUMBER: _ClassVar[int]
    ANALYSIS_RESULT_FIELD_NUMBER: _ClassVar[int]
    PRUNING_MASKS_FIELD_NUMBER: _ClassVar[int]
    DECISION_REPORT_FIELD_NUMBER: _ClassVar[int]
    SAFETY_REPORT_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_REQUIRED_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_REASON_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_AT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SUBSYSTEM_FIELD_NUMBER: _ClassVar[int]
    PROCESSING_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    PRUNING_METADATA_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    response_id: str
    validation_passed: bool
    analysis_result: StructuralAnalysisResult
    pruning_masks: _containers.RepeatedCompositeFieldContainer[PruningMask]
    decision_report: PruningDecisionReport
    safety_report: StructuralSafetyReport
    rollback_required: bool
    rollback_reason: str
    completed_at: _timestamp_pb2.Timestamp
    source_subsystem: str
    processing_time_ms: int
    idempotency_key: str
    pruning_metadata: PruningMetadata
    def __init__(self, request_id: _Optional[str] = ..., response_id: _Optional[str] = ..., validation_passed: _Optional[bool] = ..., analysis_result: _Optional[_Union[StructuralAnalysisResult, _Mapping]] = ..., pruning_masks: _Optional[_Iterable[_Union[PruningMask, _Mapping]]] = ..., decision_report: _Optional[_Union[PruningDecisionReport, _Mapping]] = ..., safety_report: _Optional[_Union[StructuralSafetyReport, _Mapping]] = ..., rollback_required: _Optional[bool] = ..., rollback_reason: _Optional[str] = ..., completed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., source_subsystem: _Optional[str] = ..., processing_time_ms: _Optional[int] = ..., idempotency_key: _Optional[str] = ..., pruning_metadata: _Optional[_Union[PruningMetadata, _Mapping]] = ...) -> None: ...
