"""The side of the strategy's process: read a request, call the user's code, answer.

Promises: an exception of the user's code is an answer, and ends nothing. The loop ends when the daemon closes its side.
"""

from __future__ import annotations

import socket
import traceback
from collections.abc import Iterator
from typing import Final

import msgspec

from tolariad.core.calc.run.exits import EXIT_CONFIG
from tolariad.leyline import CommandRefused, SystemStatePacket, decode
from tolariad.strategy.answer import AnswerRefused, answer_of
from tolariad.strategy.finding import StrategyRefused, find_strategy
from tolariad.strategy.frames import HEADER_BYTES, Frame, Kind, Ready, frame, read_header
from tolariad.strategy.interface import Strategy, call_optional
from tolariad.strategy.state import StateRefused, read_state, write_state

_TEXT_CHARS: Final = 2_000


def serve(connection: socket.socket, name: str) -> int:
    """Find the strategy and answer requests until the daemon closes the connection. Return the exit code."""
    try:
        strategy, source_hash = find_strategy(name)
        ready = Ready(source_hash=source_hash, state=_state_of(strategy))
    except Exception as error:  # noqa: BLE001 - whatever the user's file raises is the answer
        connection.sendall(_refusal(0, error, "cannot be used"))
        return EXIT_CONFIG
    connection.sendall(frame(Kind.READY, 0, msgspec.msgpack.encode(ready)))
    for request in _requests(connection):
        connection.sendall(b"".join(_answers(strategy, request)))
    return 0


def _requests(connection: socket.socket) -> Iterator[Frame]:
    while (head := _received(connection, HEADER_BYTES)) is not None:
        size, kind, generation = read_header(head)
        body = _received(connection, size)
        if body is None:
            return
        yield Frame(kind, generation, body)


def _received(connection: socket.socket, count: int) -> bytes | None:
    """Return so many bytes, or None if the connection ends before."""
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            return None
        data += piece
    return data


def _answers(strategy: Strategy, request: Frame) -> list[bytes]:
    kind, generation, body = request
    called = {Kind.LOAD: "load_state_dict", Kind.STEP: "step", Kind.VOTE: "prepare_rollback"}[kind]
    try:
        if kind is Kind.STEP:
            commands = answer_of(strategy, decode(SystemStatePacket, body))
            told = [frame(Kind.COMMAND, generation, command) for command in commands]
            called = "state_dict"
            return [*told, frame(Kind.STATE, generation, _state_of(strategy))]
        call_optional(strategy, called, read_state(body))
    except Exception as error:  # noqa: BLE001 - as above; the process goes on
        return [_refusal(generation, error, f"failed in {called}()")]
    return [frame(Kind.DONE, generation)]


def _state_of(strategy: Strategy) -> bytes:
    return write_state(call_optional(strategy, "state_dict"))


def told(error: Exception, what: str) -> str:
    """Return the reason in a line. Write the traceback of the user's error to stderr, which the daemon logs."""
    if isinstance(error, AnswerRefused | CommandRefused | StateRefused | StrategyRefused):
        return str(error)
    traceback.print_exception(error)
    raised = "".join(traceback.format_exception_only(error)).strip()
    last = next(iter(reversed(traceback.extract_tb(error.__traceback__))), None)
    place = f" ({last.filename}:{last.lineno})" if last is not None else ""
    return f"{what}: {raised}{place}"[:_TEXT_CHARS]


def _refusal(generation: int, error: Exception, what: str) -> bytes:
    return frame(Kind.REFUSED, generation, told(error, what).encode("utf-8", "backslashreplace"))
