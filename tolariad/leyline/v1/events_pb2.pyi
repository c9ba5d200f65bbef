import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from tolariad.leyline.v1 import enums_pb2 as _enums_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EventEnvelope(_message.Message):
    __slots__ = ("event_id", "event_type", "source_subsystem", "created_at", "processing_deadline", "ttl", "payload", "payload_type", "content_encoding", "priority", "routing_keys", "correlation_id", "delivery_guarantee", "max_attempts", "current_attempt")
    EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    EVENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SUBSYSTEM_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    PROCESSING_DEADLINE_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_TYPE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_ENCODING_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ROUTING_KEYS_FIELD_NUMBER: _ClassVar[int]
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_GUARANTEE_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    CURRENT_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    event_id: str
    event_type: str
    source_subsystem: str
    created_at: _timestamp_pb2.Timestamp
    processing_deadline: _duration_pb2.Duration
    ttl: _duration_pb2.Duration
    payload: bytes
    payload_type: str
    content_encoding: str
    priority: _enums_pb2.MessagePriority
    routing_keys: _containers.RepeatedScalarFieldContainer[str]
    correlation_id: str
    delivery_guarantee: _enums_pb2.DeliveryGuarantee
    max_attempts: int
    current_attempt: int
    def __init__(self, event_id: _Optional[str] = ..., event_type: _Optional[str] = ..., source_subsystem: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., processing_deadline: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., payload: _Optional[bytes] = ..., payload_type: _Optional[str] = ..., content_encoding: _Optional[str] = ..., priority: _Optional[_Union[_enums_pb2.MessagePriority, str]] = ..., routing_keys: _Optional[_Iterable[str]] = ..., correlation_id: _Optional[str] = ..., delivery_guarantee: _Optional[_Union[_enums_pb2.DeliveryGuarantee, str]] = ..., max_attempts: _Optional[int] = ..., current_attempt: _Optional[int] = ...) -> None: ...

class EmergencySignal(_message.Message):
    __slots__ = ("version", "level", "reason", "origin", "triggered_at", "monotonic_time_ms", "run_id", "attributes", "payload_checksum")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    TRIGGERED_AT_FIELD_NUMBER: _ClassVar[int]
    MONOTONIC_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    version: int
    level: _enums_pb2.EmergencyLevel
    reason: str
    origin: str
    triggered_at: _timestamp_pb2.Timestamp
    monotonic_time_ms: int
    run_id: str
    attributes: _containers.ScalarMap[str, str]
    payload_checksum: str
    def __init__(self, version: _Optional[int] = ..., level: _Optional[_Union[_enums_pb2.EmergencyLevel, str]] = ..., reason: _Optional[str] = ..., origin: _Optional[str] = ..., triggered_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., monotonic_time_ms: _Optional[int] = ..., run_id: _Optional[str] = ..., attributes: _Optional[_Mapping[str, str]] = ..., payload_checksum: _Optional[str] = ...) -> None: ...
