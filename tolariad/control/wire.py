"""Varlink on the wire: one JSON object a message, ended by NUL.

Promises: a message becomes a `Call` or a `CallError` that can be sent back; a reply is always JSON that every client
reads (no NaN, no NUL in strings), and that a terminal only shows. It must not know: sockets, methods.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from tolariad.core.bounds import refusal
from tolariad.core.plain import escaped_json_bytes, plain

SERVICE: Final = "org.varlink.service"
INTERFACE: Final = "io.esper.tolaria"
END: Final = b"\0"

P = TypeVar("P", bound=msgspec.Struct)


class Call(msgspec.Struct, frozen=True):
    """One call. Absent, null and empty parameters mean the same."""

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
    """An error of org.varlink.service."""
    return CallError(f"{SERVICE}.{name}", **parameters)


def own_error(name: str, why: str, phase: str = "") -> CallError:
    """An error of our interface; each says why, and the run's phase."""
    return CallError(f"{INTERFACE}.{name}", why=why, phase=phase)


_call = msgspec.json.Decoder(Call)
_FIELD: Final = re.compile(r"`\$\.([A-Za-z0-9_]+)|field `([A-Za-z0-9_]+)`")


def read_call(message: bytes | bytearray) -> Call:
    """Read one message without its NUL. Raises CallError (InvalidParameter) where it is no call."""
    try:
        return _call.decode(message)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise service_error("InvalidParameter", parameter=_field(error, "message")) from error


def read_parameters(call: Call, kind: type[P]) -> P:
    """Return the call's parameters as `kind`.

    Raises CallError: InvalidParameter naming the first that is of the wrong type, Refused with a sentence for the first that
    is out of its bounds.
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
    """One reply with its NUL."""
    return _message(_Reply(parameters, continues))


def error_bytes(error: CallError) -> bytes:
    """One error reply with its NUL."""
    return _message(_Reply(error.parameters, error=error.name))


def _message(reply: _Reply) -> bytes:
    body = _encode(reply)
    if b"\\u0000" in body:
        # Rare (a traceback, a note): sd-json and others refuse the whole message, so the character is left out.
        body = _encode(plain(msgspec.to_builtins(reply)))
    return escaped_json_bytes(body) + END
