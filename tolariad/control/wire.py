"""Varlink on the wire: a message is one JSON object, ended by NUL.

Promises: a message becomes a `Call`, or a `CallError` that can be sent back. A reply is JSON that every client can
read: no NaN, no NUL in strings, no control characters for a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from tolariad.core.calc.bounds import refusal
from tolariad.core.calc.text.plain import escaped_json_bytes, plain

SERVICE: Final = "org.varlink.service"
INTERFACE: Final = "io.esper.tolaria"
END: Final = b"\0"

P = TypeVar("P", bound=msgspec.Struct)


class Call(msgspec.Struct, frozen=True):
    """One call. Parameters that are absent, null or empty mean the same."""

    method: str
    parameters: msgspec.Raw = msgspec.Raw(b"{}")
    oneway: bool | None = None
    more: bool | None = None
    upgrade: bool | None = None


class CallError(Exception):
    """An error reply: its qualified name and its parameters."""

    def __init__(self, name: str, **parameters: str) -> None:
        self.name = name
        self.parameters = parameters
        super().__init__(name)


def service_error(name: str, **parameters: str) -> CallError:
    """Return an error of the interface org.varlink.service."""
    return CallError(f"{SERVICE}.{name}", **parameters)


def own_error(name: str, why: str, phase: str = "") -> CallError:
    """Return an error of our interface, with the reason and the run's phase."""
    return CallError(f"{INTERFACE}.{name}", why=why, phase=phase)


_call = msgspec.json.Decoder(Call)
_FIELD: Final = re.compile(r"`\$\.([A-Za-z0-9_]+)|field `([A-Za-z0-9_]+)`")


def read_call(message: bytes | bytearray) -> Call:
    """Read one message without its NUL. Raises CallError (InvalidParameter) if it is not a call."""
    try:
        return _call.decode(message)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise service_error("InvalidParameter", parameter=_field(error, "message")) from error


def read_parameters(call: Call, kind: type[P]) -> P:
    """Return the call's parameters as `kind`.

    Raises CallError: InvalidParameter names the first parameter of the wrong type; Refused gives a sentence for the
    first one that is out of bounds.
    """
    raw = bytes(call.parameters)
    try:
        read = msgspec.json.decode(b"{}" if raw == b"null" else raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise service_error("InvalidParameter", parameter=_field(error, "parameters")) from error
    if (why := refusal(read)) is not None:
        raise own_error("Refused", why)
    return read


def _field(error: Exception, otherwise: str) -> str:
    found = _FIELD.search(str(error))
    return next((name for name in found.groups() if name), otherwise) if found else otherwise


class _Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    parameters: Any
    continues: bool = False
    error: str = ""


_encode = msgspec.json.Encoder().encode


def reply_bytes(parameters: msgspec.Struct | Mapping[str, Any], *, continues: bool = False) -> bytes:
    """Return one reply with its NUL."""
    return _message(_Reply(parameters, continues))


def error_bytes(error: CallError) -> bytes:
    """Return one error reply with its NUL."""
    return _message(_Reply(error.parameters, error=error.name))


def _message(reply: _Reply) -> bytes:
    body = _encode(reply)
    if b"\\u0000" in body:
        # Rare (a traceback, a note). sd-json and others refuse a message with this character, so it is left out.
        body = _encode(plain(msgspec.to_builtins(reply)))
    return escaped_json_bytes(body) + END
