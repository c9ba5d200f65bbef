from google.protobuf import struct_pb2 as _struct_pb2
from tolariad.leyline.v1 import enums_pb2 as _enums_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CheckpointChunk(_message.Message):
    __slots__ = ("name", "offset", "len", "blake3")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEN_FIELD_NUMBER: _ClassVar[int]
    BLAKE3_FIELD_NUMBER: _ClassVar[int]
    name: str
    offset: int
    len: int
    blake3: str
    def __init__(self, name: _Optional[str] = ..., offset: _Optional[int] = ..., len: _Optional[int] = ..., blake3: _Optional[str] = ...) -> None: ...

class CheckpointMetadata(_message.Message):
    __slots__ = ("format", "checkpoint_id", "parent_checkpoint_id", "training_run_id", "branch", "epoch", "batch", "global_step", "acted", "reason", "created_ns", "created", "health", "promoted_good", "promoted_checkpoint_id", "rollback_capable", "rng_captured", "pruning_phase", "cumulative_pruned_fraction", "mask_ref", "importance_ref", "merkle_root", "model_hash", "task_hash", "config_hash", "code_version", "toolchain_version", "hardware_profile", "torch_threads", "ranks", "sizes", "chunks", "aliases", "cut", "transient", "compactions")
    class SizesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class AliasesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class CutEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _struct_pb2.Struct
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    TRAINING_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    ACTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CREATED_NS_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    PROMOTED_GOOD_FIELD_NUMBER: _ClassVar[int]
    PROMOTED_CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_CAPABLE_FIELD_NUMBER: _ClassVar[int]
    RNG_CAPTURED_FIELD_NUMBER: _ClassVar[int]
    PRUNING_PHASE_FIELD_NUMBER: _ClassVar[int]
    CUMULATIVE_PRUNED_FRACTION_FIELD_NUMBER: _ClassVar[int]
    MASK_REF_FIELD_NUMBER: _ClassVar[int]
    IMPORTANCE_REF_FIELD_NUMBER: _ClassVar[int]
    MERKLE_ROOT_FIELD_NUMBER: _ClassVar[int]
    MODEL_HASH_FIELD_NUMBER: _ClassVar[int]
    TASK_HASH_FIELD_NUMBER: _ClassVar[int]
    CONFIG_HASH_FIELD_NUMBER: _ClassVar[int]
    CODE_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOOLCHAIN_VERSION_FIELD_NUMBER: _ClassVar[int]
    HARDWARE_PROFILE_FIELD_NUMBER: _ClassVar[int]
    TORCH_THREADS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    TRANSIENT_FIELD_NUMBER: _ClassVar[int]
    COMPACTIONS_FIELD_NUMBER: _ClassVar[int]
    format: str
    checkpoint_id: str
    parent_checkpoint_id: str
    training_run_id: str
    branch: int
    epoch: int
    batch: int
    global_step: int
    acted: _containers.RepeatedScalarFieldContainer[int]
    reason: str
    created_ns: int
    created: str
    health: _enums_pb2.HealthStatus
    promoted_good: bool
    promoted_checkpoint_id: str
    rollback_capable: bool
    rng_captured: bool
    pruning_phase: _enums_pb2.PruningPhase
    cumulative_pruned_fraction: float
    mask_ref: str
    importance_ref: str
    merkle_root: str
    model_hash: str
    task_hash: str
    config_hash: str
    code_version: str
    toolchain_version: str
    hardware_profile: str
    torch_threads: int
    ranks: int
    sizes: _containers.ScalarMap[str, int]
    chunks: _containers.RepeatedCompositeFieldContainer[CheckpointChunk]
    aliases: _containers.ScalarMap[str, str]
    cut: _containers.MessageMap[str, _struct_pb2.Struct]
    transient: _containers.RepeatedScalarFieldContainer[str]
    compactions: int
    def __init__(self, format: _Optional[str] = ..., checkpoint_id: _Optional[str] = ..., parent_checkpoint_id: _Optional[str] = ..., training_run_id: _Optional[str] = ..., branch: _Optional[int] = ..., epoch: _Optional[int] = ..., batch: _Optional[int] = ..., global_step: _Optional[int] = ..., acted: _Optional[_Iterable[int]] = ..., reason: _Optional[str] = ..., created_ns: _Optional[int] = ..., created: _Optional[str] = ..., health: _Optional[_Union[_enums_pb2.HealthStatus, str]] = ..., promoted_good: _Optional[bool] = ..., promoted_checkpoint_id: _Optional[str] = ..., rollback_capable: _Optional[bool] = ..., rng_captured: _Optional[bool] = ..., pruning_phase: _Optional[_Union[_enums_pb2.PruningPhase, str]] = ..., cumulative_pruned_fraction: _Optional[float] = ..., mask_ref: _Optional[str] = ..., importance_ref: _Optional[str] = ..., merkle_root: _Optional[str] = ..., model_hash: _Optional[str] = ..., task_hash: _Optional[str] = ..., config_hash: _Optional[str] = ..., code_version: _Optional[str] = ..., toolchain_version: _Optional[str] = ..., hardware_profile: _Optional[str] = ..., torch_threads: _Optional[int] = ..., ranks: _Optional[int] = ..., sizes: _Optional[_Mapping[str, int]] = ..., chunks: _Optional[_Iterable[_Union[CheckpointChunk, _Mapping]]] = ..., aliases: _Optional[_Mapping[str, str]] = ..., cut: _Optional[_Mapping[str, _struct_pb2.Struct]] = ..., transient: _Optional[_Iterable[str]] = ..., compactions: _Optional[int] = ...) -> None: ...
