"""The methods that change a run: parameters and description of each, made from the Struct of its order.

Promises: an order that is in the table of core is a method, without a line here. A parameter that is absent or null has the
default of the Struct's field.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin

import msgspec

from tolariad.control.wire import INTERFACE, Call, read_parameters, service_error
from tolariad.core.base import Batch, Epoch
from tolariad.core.control.words import Command
from tolariad.core.health.quarantine_words import Batches
from tolariad.core.health.words import Level
from tolariad.core.learning_rate.schedule import LRPolicy, policy_named
from tolariad.core.orders import ORDERS
from tolariad.core.rollback.words import Tier
from tolariad.core.settings.optimization import PolicyName

_WIDTH: Final = 118
_ANSWER: Final = "(seq: int, outcome: ?Outcome)"


class QuarantinedBatches(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Batches as a client writes them."""

    epoch: Epoch
    first: Batch
    last: Batch


class _Form(NamedTuple):
    """How a client writes a value of a type: the type that is read, and what makes the value of it."""

    kind: Any
    read: Callable[[Any], Any]


_FORMS: Final[dict[Any, _Form]] = {
    LRPolicy: _Form(PolicyName, policy_named),
    Batches: _Form(QuarantinedBatches, lambda given: Batches(given.epoch, given.first, given.last)),
}
# The names of types in the description, if they are not those of the code.
_NAMES: Final[dict[Any, str]] = {PolicyName: "RatePolicy", Tier: "RollbackTier", Level: "EmergencyLevel"}
_PLAIN: Final = {bool: "bool", int: "int", float: "float", str: "string"}


def _method(kind: type[Command]) -> str:
    return kind.METHOD or kind.__name__


METHODS: Final[dict[str, type[Command]]] = {f"{INTERFACE}.{_method(kind)}": kind for kind in ORDERS}


# -- parameters ----------------------------------------------------------------------------------------------------------


def _kind(field: msgspec.structs.FieldInfo) -> Any:
    """The field's type, without the None of an optional one."""
    if get_origin(field.type) is Annotated or type(None) not in get_args(field.type):
        return field.type
    return next(one for one in get_args(field.type) if one is not type(None))


def _form(field: msgspec.structs.FieldInfo) -> _Form:
    kind = _kind(field)
    return _FORMS.get(kind, _Form(kind, lambda value: value))


def _parameters(kind: type[Command]) -> type[msgspec.Struct]:
    fields: list[Any] = []
    for field in msgspec.structs.fields(kind):
        read = _form(field).kind
        fields.append((field.name, read) if field.required else (field.name, Union[read, None], None))  # noqa: UP007
    return msgspec.defstruct(
        f"{kind.__name__}Parameters", fields, frozen=True, kw_only=True, forbid_unknown_fields=True
    )


PARAMETERS: Final = {kind: _parameters(kind) for kind in ORDERS}


def read_order(call: Call) -> Command:
    """Return the order that a call of one of `METHODS` gives. Raises CallError."""
    kind = METHODS[call.method]
    given = read_parameters(call, PARAMETERS[kind])
    one_of = [name for name in kind.ONE_OF if getattr(given, name) is not None]
    if len(one_of) > 1:
        raise service_error("InvalidParameter", parameter=one_of[0])
    values = {
        field.name: _form(field).read(value)
        for field in msgspec.structs.fields(kind)
        if (value := getattr(given, field.name)) is not None
    }
    return kind(**values)


# -- description ---------------------------------------------------------------------------------------------------------


def described(text: str) -> str:
    """Return the interface's description with the methods of all orders, and the types that only they have, at its end."""
    parts = [text.rstrip()]
    for kind in ORDERS:
        fields = msgspec.structs.fields(kind)
        # What every order takes comes last.
        common = len(msgspec.structs.fields(Command))
        named = [(field, _name(_form(field).kind)) for field in (*fields[common:], *fields[:common])]
        for field, name in named:
            if name not in _PLAIN.values() and f"type {name} (" not in "\n".join(parts):
                parts.append(f"type {name} ({', '.join(_words(_form(field).kind))})")
        parameters = ", ".join(f"{field.name}: {'' if field.required else '?'}{name}" for field, name in named)
        parts.append(f"{_comment(kind)}\nmethod {_method(kind)}({parameters}) -> {_ANSWER}")
    return "\n\n".join(parts) + "\n"


def _name(kind: Any) -> str:
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    return _PLAIN.get(kind) or _NAMES.get(kind) or str(kind.__name__)


def _words(kind: Any) -> list[str]:
    """The values of an enumeration, or the fields of a Struct with their types."""
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [one.value for one in kind]
    return [f"{field.name}: {_name(field.type)}" for field in msgspec.structs.fields(kind)]


def _comment(kind: type[Command]) -> str:
    paragraphs = " ".join(inspect.cleandoc(kind.__doc__ or "").split())
    return "\n".join(f"# {line}" for line in textwrap.wrap(paragraphs, _WIDTH))
