"""Generate docs/leyline.md from the messages' sources, so that page and messages cannot differ."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

from tests.house.protos import described
from tests.house.wrapping import wrapped
from tolariad.leyline import MEANINGS, CommandType
from tolariad.leyline.pruning import MESSAGE_BYTES_MAX as PRUNING_BYTES_MAX
from tolariad.leyline.serializer import BYTES_MAX, SEEDS_MAX, VERSION

_HEAD = f"""\
# Leyline: messages to other subsystems

A run tells other subsystems of its state, and takes their commands, in messages of protobuf. The sources are in
`proto/tolariad/leyline/v1/`, the protobuf package is `esper.leyline.v1`. After each epoch a run sends a
SystemStatePacket to its strategy, and obeys AdaptationCommands. The analysis of a checkpoint for pruning is asked for
by a StructuralPruningRequest and answered by a StructuralPruningResponse. On the bus a run sends EventEnvelopes with
TelemetryPackets and EmergencySignals (telemetry.md). Nothing sends or reads the others yet. In
Python:

```python
from tolariad.leyline import SystemStatePacket, SystemStateSerializer

packet = SystemStatePacket(version={VERSION}, current_epoch=3, validation_loss=0.21)
data = SystemStateSerializer.serialize(packet)
assert SystemStateSerializer.deserialize(data) == packet
```

* The version is {VERSION} and must be equal: another one, or none, is refused (`VersionMismatch`). What breaks readers
  gets a new version. Numbers of fields and values are never reused.
* Fields that this version does not know are kept: what is read and written again still has them.
* A packet or command has at most {BYTES_MAX} bytes, and a packet at most {SEEDS_MAX} seeds. A larger one is refused
  before it is parsed.
* A request or answer of pruning has at most {PRUNING_BYTES_MAX} bytes. An answer without a result has the decision
  UNKNOWN, and its only reason says why. Units are in `UnitSet`; `pruning_masks` is empty, because they say the same.
* Every refusal is a `MessageRefused`, with the reason. One of a packet or command counts as a failure of the breaker
  `serialization`.
* The order in which a map was filled does not change the bytes.

`make proto` generates the Python code again after a change of a source; a test compares them. `make docs` writes this
page.

## What a command does

`check_command` returns the row of a command or refuses it: another payload, a blank name, a number that is not finite,
a deadline without `issued_at`. The run refuses a command that it cannot obey. Examples are an unknown seed, group or
epoch, an illegal move, a rate too far from the present one, a deadline that has passed. Each refusal is an
event (`CommandRefused`), and the other commands of the answer act. A command acts once: an id that was answered before
is left out.

| `command_type` | payload | the run |
|---|---|---|
"""
# Numbers of fields of a file's descriptor, and of a message's: comments are found by them. A file's stands above its
# package.
_PACKAGE, _MESSAGES, _ENUMS, _FIELDS = 2, 4, 5, 2


def leyline_page() -> str:
    """Return the page: rules, commands, then each file with its messages and enums, the shared enums last."""
    parts = [_HEAD, *_command_rows()]
    for file in sorted(described(), key=lambda one: one.name.endswith("/enums.proto")):
        parts.append(f"\n## `{file.name.rpartition('/')[2]}`\n\n{_comment(file, _PACKAGE)}\n")
        parts += [_message(file, n, one) for n, one in enumerate(file.message_type)]
        parts += [_enum(file, n, one) for n, one in enumerate(file.enum_type)]
    return wrapped("".join(parts))


def _command_rows() -> Iterator[str]:
    for number, one in MEANINGS.items():
        payload = f"`{one.payload}`{', or none' if one.may_lack_payload else ''}" if one.payload else "none"
        does = f"refuses it: {one.refused}" if one.refused else one.does
        yield f"| {number} `{CommandType.Name(number)}` | {payload} | {does} |\n"


def _comment(file: FileDescriptorProto, *path: int) -> str:
    """Return the comment above what lies at this path. Raises LookupError if there is none: everything has one."""
    for found in file.source_code_info.location:
        if tuple(found.path) == path and found.leading_comments:
            return " ".join(found.leading_comments.split())
    raise LookupError(f"{file.name} has no comment at {path}")


def _message(file: FileDescriptorProto, number: int, message: DescriptorProto) -> str:
    entries = {f"{message.name}.{one.name}": one for one in message.nested_type if one.options.map_entry}
    rows = ["| # | field | type | meaning |\n|---|---|---|---|\n"]
    for n, field in enumerate(message.field):
        meaning = _comment(file, _MESSAGES, number, _FIELDS, n)
        rows.append(f"| {field.number} | `{field.name}` | {_type(field, entries)} | {meaning} |\n")
    return f"\n### {message.name}\n\n{_comment(file, _MESSAGES, number)}\n\n{''.join(rows)}"


def _type(field: FieldDescriptorProto, entries: dict[str, DescriptorProto]) -> str:
    entry = next((one for name, one in entries.items() if field.type_name.endswith(f".{name}")), None)
    if entry is not None:
        key, value = (_type(one, {}) for one in entry.field)
        return f"map of {key} to {value}"
    name = (
        field.type_name.rpartition(".")[2] or FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    )
    repeated = field.label == FieldDescriptorProto.LABEL_REPEATED
    return f"list of {name}" if repeated else f"{name}, optional" if field.proto3_optional else name


def _enum(file: FileDescriptorProto, number: int, enum: EnumDescriptorProto) -> str:
    values = ", ".join(f"{value.number} `{value.name}`" for value in enum.value)
    return f"\n### {enum.name}\n\n{_comment(file, _ENUMS, number)}\n\n{values}\n"
