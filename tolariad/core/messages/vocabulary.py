"""Leyline inside the process: all messages as unions, and the codec of events.

Promises: decoding takes two steps (`type` and `skippable` first, then that type's own decoder). An event of a newer
version is therefore either skipped (if it says `skippable`) or named, never misread. Names and fields are only added; a
test compares them.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar, Union

import msgspec

from tolariad.core.messages import (
    architecture,
    base,
    boundary_order,
    checkpoints,
    control,
    insurance,
    pruning,
    quarantine,
    rollback,
    run,
    seeds,
    snapshots,
    stages,
    steps,
    steps_rerun,
    strategy,
    trainer,
)
from tolariad.core.messages import budget as budgets
from tolariad.core.messages import health as hv
from tolariad.core.messages import pruning_mask as masks
from tolariad.core.messages import rates as learning_rate
from tolariad.core.messages import rates_hyper as hyper
from tolariad.core.messages.base import Event
from tolariad.core.messages.boundary import BoundaryOrderReport

# The modules with messages, by their titles in docs/events.md.
CONCERNS: Final = {
    "The run": run,
    "The trainer": trainer,
    "Steps, epochs, validations": steps,
    "Checkpoints": checkpoints,
    "Re-runs": steps_rerun,
    "Orders and notes": control,
    "Orders for a step's boundary": boundary_order,
    "Learning rates and optimizers": learning_rate,
    "Hyper-parameters of optimizers": hyper,
    "Stages": stages,
    "Architecture": architecture,
    "Seeds": seeds,
    "The strategy": strategy,
    "Pruning": pruning,
    "Masks and compaction": masks,
    "Budgets": budgets,
    "Rollbacks": rollback,
    "Snapshots": snapshots,
    "Health": hv,
    "Quarantine": quarantine,
    "The autopilot": insurance,
}
M = TypeVar("M", bound=msgspec.Struct)


def defined_in(module: ModuleType, base: type[M]) -> tuple[type[M], ...]:
    """Return the types derived from `base` that the module defines, in its order."""
    found = (one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__)
    return tuple(one for one in found if issubclass(one, base))


def _all(base: type[M]) -> tuple[type[M], ...]:
    return tuple(one for module in CONCERNS.values() for one in defined_in(module, base))


EVENT_TYPES: Final[dict[str, type[Event]]] = {kind.__name__: kind for kind in _all(Event)}
# Every order is one; core/rules/table/orders.py lists them.
AnyCommand: TypeAlias = control.Command
if TYPE_CHECKING:
    Report: TypeAlias = base.Report
    TrainerEffect: TypeAlias = base.TrainerEffect
    DaemonEffect: TypeAlias = base.DaemonEffect
else:
    # For the codec each is the union of its types.
    Report = Union[(*_all(base.Report), BoundaryOrderReport)]
    TrainerEffect = Union[_all(base.TrainerEffect)]  # noqa: UP007 - from a list
    DaemonEffect = Union[_all(base.DaemonEffect)]  # noqa: UP007 - from a list


def kinds_of(base: type[Event]) -> tuple[type[Event], ...]:
    """Return the event types that are derived from `base`."""
    return tuple(kind for kind in EVENT_TYPES.values() if issubclass(kind, base))


class Unknown(msgspec.Struct, frozen=True):
    """An event of a type that this version does not know."""

    type: str
    skippable: bool = False


# These two fields of every event decide how the rest is read.
_kind = msgspec.msgpack.Decoder(Unknown)

_encoder = msgspec.msgpack.Encoder(order="deterministic")


@functools.cache
def _decoder(name: str) -> msgspec.msgpack.Decoder[Event]:
    """Return the decoder of a type. Those of all types would take a tenth of the time that a short command takes."""
    return msgspec.msgpack.Decoder(EVENT_TYPES[name])


def encode_event(event: Event) -> bytes:
    """Return the event as one msgpack map, the form in which it is journaled."""
    return _encoder.encode(event)


def decode_event(raw: bytes | msgspec.Raw) -> Event | Unknown:
    """Read one journaled event. Raises msgspec.ValidationError if a known type has an impossible field."""
    kind = _kind.decode(raw)
    return _decoder(kind.type).decode(raw) if kind.type in EVENT_TYPES else kind
