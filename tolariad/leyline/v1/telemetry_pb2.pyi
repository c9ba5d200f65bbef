import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from tolariad.leyline.v1 import enums_pb2 as _enums_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MetricPoint(_message.Message):
    __slots__ = ("name", "value", "unit", "attributes")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    unit: str
    attributes: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ..., unit: _Optional[str] = ..., attributes: _Optional[_Mapping[str, str]] = ...) -> None: ...

class TelemetryEvent(_message.Message):
    __slots__ = ("event_id", "description", "level", "attributes")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    event_id: str
    description: str
    level: _enums_pb2.TelemetryLevel
    attributes: _containers.ScalarMap[str, str]
    def __init__(self, event_id: _Optional[str] = ..., description: _Optional[str] = ..., level: _Optional[_Union[_enums_pb2.TelemetryLevel, str]] = ..., attributes: _Optional[_Mapping[str, str]] = ...) -> None: ...

class TraceSpan(_message.Message):
    __slots__ = ("span_id", "parent_span_id", "name", "start_time", "end_time", "attributes")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    span_id: str
    parent_span_id: str
    name: str
    start_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    attributes: _containers.ScalarMap[str, str]
    def __init__(self, span_id: _Optional[str] = ..., parent_span_id: _Optional[str] = ..., name: _Optional[str] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., attributes: _Optional[_Mapping[str, str]] = ...) -> None: ...

class SystemHealth(_message.Message):
    __slots__ = ("status", "summary", "indicators")
    class IndicatorsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    INDICATORS_FIELD_NUMBER: _ClassVar[int]
    status: _enums_pb2.HealthStatus
    summary: str
    indicators: _containers.ScalarMap[str, str]
    def __init__(self, status: _Optional[_Union[_enums_pb2.HealthStatus, str]] = ..., summary: _Optional[str] = ..., indicators: _Optional[_Mapping[str, str]] = ...) -> None: ...

class TelemetryPacket(_message.Message):
    __slots__ = ("packet_id", "timestamp", "source_subsystem", "level", "metrics", "events", "spans", "system_health")
    PACKET_ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SUBSYSTEM_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_HEALTH_FIELD_NUMBER: _ClassVar[int]
    packet_id: str
    timestamp: _timestamp_pb2.Timestamp
    source_subsystem: str
    level: _enums_pb2.TelemetryLevel
    metrics: _containers.RepeatedCompositeFieldContainer[MetricPoint]
    events: _containers.RepeatedCompositeFieldContainer[TelemetryEvent]
    spans: _containers.RepeatedCompositeFieldContainer[TraceSpan]
    system_health: SystemHealth
    def __init__(self, packet_id: _Optional[str] = ..., timestamp: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., source_subsystem: _Optional[str] = ..., level: _Optional[_Union[_enums_pb2.TelemetryLevel, str]] = ..., metrics: _Optional[_Iterable[_Union[MetricPoint, _Mapping]]] = ..., events: _Optional[_Iterable[_Union[TelemetryEvent, _Mapping]]] = ..., spans: _Optional[_Iterable[_Union[TraceSpan, _Mapping]]] = ..., system_health: _Optional[_Union[SystemHealth, _Mapping]] = ...) -> None: ...
