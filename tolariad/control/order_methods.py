"""The methods that change a run, made from the Structs of their orders; and the description of the interface.

Promises: an order that is in the table of core is a method, without a line here. A parameter that is absent or null has
the default of the Struct's field. Every type in the description is made from the Struct that is sent or read.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin

import msgspec

from tolariad.control.replies import (
    FAILURE,
    PHASE,
    NumberState,
    Outcome,
    OutcomeState,
    RunStatus,
    SaidStatus,
    Server,
    TroubleStatus,
)
from tolariad.control.reply_tables import BudgetTable, PruneTable, RateTable, SeedTable
from tolariad.control.wire import INTERFACE, Call, read_parameters, service_error
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.health.budgets import Kind, Unit
from tolariad.core.calc.learning_rate.schedule import LRPolicy, policy_named
from tolariad.core.calc.settings.optimization import PolicyName
from tolariad.core.calc.units import Batch, Epoch
from tolariad.core.rules.table.orders import ORDERS

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
    m.Batches: _Form(QuarantinedBatches, lambda given: m.Batches(given.epoch, given.first, given.last)),
}
# The types of replies that methods of the description name.
_REPLIES: Final = (RunStatus, BudgetTable, RateTable, SeedTable, PruneTable, Outcome)
# The names of types in the description, if they are not those of the code.
_NAMES: Final[dict[Any, str]] = {
    PolicyName: "RatePolicy",
    m.Tier: "RollbackTier",
    m.Level: "EmergencyLevel",
    st.Phase: "RunPhase",
    NumberState: "NumberState",
    Server: "Server",
    OutcomeState: "OutcomeState",
    Unit: "BudgetUnit",
    Kind: "BudgetKind",
    SaidStatus: "Said",
    TroubleStatus: "Trouble",
}
# The enums that `replies` names.
_ENUMS: Final[dict[str, type[Enum]]] = {PHASE: st.Phase, FAILURE: m.FailureKind}
_PLAIN: Final = {bool: "bool", int: "int", float: "float", str: "string"}


METHODS: Final[dict[str, type[m.Command]]] = {f"{INTERFACE}.{kind.METHOD or kind.__name__}": kind for kind in ORDERS}


# -- parameters ------------------------------------------------------------------------------------------------------


def _without_none(kind: Any) -> Any:
    """Return the type without the None of an optional one."""
    if type(None) not in get_args(kind):
        return kind
    return next(one for one in get_args(kind) if one is not type(None))


def _form(field: msgspec.structs.FieldInfo) -> _Form:
    kind = _without_none(field.type)
    return _FORMS.get(kind, _Form(kind, lambda value: value))


def _parameters(kind: type[m.Command]) -> type[msgspec.Struct]:
    fields: list[Any] = []
    for field in msgspec.structs.fields(kind):
        read = _form(field).kind
        fields.append((field.name, read) if field.required else (field.name, read | None, None))
    return msgspec.defstruct(
        f"{kind.__name__}Parameters", fields, frozen=True, kw_only=True, forbid_unknown_fields=True
    )


def _readers(kind: type[m.Command]) -> dict[str, Callable[[Any], Any]]:
    return {field.name: _form(field).read for field in msgspec.structs.fields(kind)}


# Made once: listing the fields of an order takes as long as reading its call.
PARAMETERS: Final = {kind: _parameters(kind) for kind in ORDERS}
_READERS: Final = {kind: _readers(kind) for kind in ORDERS}


def read_order(call: Call) -> m.Command:
    """Return the order that a call of one of `METHODS` gives. Raises CallError."""
    kind = METHODS[call.method]
    given = read_parameters(call, PARAMETERS[kind])
    one_of = [name for name in kind.ONE_OF if getattr(given, name) is not None]
    if len(one_of) > 1:
        raise service_error("InvalidParameter", parameter=one_of[0])
    values = {name: read(value) for name, read in _READERS[kind].items() if (value := getattr(given, name)) is not None}
    return kind(**values)


# -- description -----------------------------------------------------------------------------------------------------


def described(text: str) -> str:
    """Return the interface's description with the types of replies, and the methods of all orders, at its end."""
    types: dict[str, str] = {}
    for reply in _REPLIES:
        _name(reply, types)
    methods = []
    for method, kind in METHODS.items():
        fields = msgspec.structs.fields(kind)
        # The parameters that every order takes come last.
        common = len(msgspec.structs.fields(m.Command))
        parameters = ", ".join(
            f"{field.name}: {'' if field.required else '?'}{_name(_form(field).kind, types)}"
            for field in (*fields[common:], *fields[:common])
        )
        methods.append(f"{_comment(kind)}\nmethod {method.rpartition('.')[2]}({parameters}) -> {_ANSWER}")
    return "\n\n".join((text.rstrip(), *types.values(), *methods)) + "\n"


def _name(kind: Any, types: dict[str, str]) -> str:
    """Return the name of a type; add its declaration, and those of the types in it, to `types`."""
    if type(None) in get_args(kind):
        return f"?{_name(_without_none(kind), types)}"
    if get_origin(kind) is Annotated:
        kind, *notes = get_args(kind)
        kind = next((_ENUMS[note] for note in notes if isinstance(note, str)), kind)  # the values of a text
    if get_origin(kind) is tuple:
        return f"[]{_element(get_args(kind)[0], types)}"
    if get_origin(kind) is dict:
        return f"[string]{_element(get_args(kind)[1], types)}"
    if kind in _PLAIN:
        return _PLAIN[kind]
    name = _NAMES.get(kind) or str(kind.__name__)
    if name not in types:
        types[name] = _declaration(name, kind, types)
    return name


def _element(kind: Any, types: dict[str, str]) -> str:
    """Return the name of the type of elements. If they may be absent it is `object`, which is any value.

    The grammar of varlink has `[string]?float`, but systemd's parser refuses it.
    """
    return "object" if type(None) in get_args(kind) else _name(kind, types)


def _declaration(name: str, kind: Any, types: dict[str, str]) -> str:
    if get_origin(kind) is Literal:
        return f"type {name} ({', '.join(get_args(kind))})"
    if issubclass(kind, Enum):
        return f"type {name} ({', '.join(one.value for one in kind)})"
    fields = ",\n".join(f"  {field.name}: {_name(field.type, types)}" for field in msgspec.structs.fields(kind))
    return f"{_comment(kind)}\ntype {name} (\n{fields}\n)"


def _comment(kind: type[msgspec.Struct]) -> str:
    # A list keeps its items; everything else is one paragraph.
    items = re.split(r"\n+(?=\* )", inspect.cleandoc(kind.__doc__ or ""))
    return "\n".join(f"# {line}" for item in items for line in textwrap.wrap(" ".join(item.split()), _WIDTH))
