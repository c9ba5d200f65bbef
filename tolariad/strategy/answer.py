"""A strategy's answer to one packet: as its `step` returns it, as bytes, and read again.

Promises: an answer that is read has at most 16 commands of this version, with at most 64 KiB together. An answer of
which a part cannot be read is refused whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tolariad.leyline import (
    AdaptationCommand,
    CommandType,
    MessageRefused,
    SystemStatePacket,
    decode,
)
from tolariad.strategy.interface import Strategy

COMMANDS_MAX: Final = 16
# For all commands of an answer together: they become part of the journal.
ANSWER_BYTES_MAX: Final = 64 * 1024


class AnswerRefused(ValueError):
    """The run obeys nothing of this answer. The text says why and what to do.

    Its cause is a MessageRefused if a command could not be read, for example one of another version.
    """


def answer_of(strategy: Strategy, packet: SystemStatePacket) -> list[bytes]:
    """Return the commands that the strategy gives, as bytes. Raises AnswerRefused, and what the strategy raises."""
    answer: object = strategy.step(packet)
    commands = [answer] if isinstance(answer, AdaptationCommand) else answer
    if not isinstance(commands, Sequence) or isinstance(commands, str | bytes):
        raise AnswerRefused(
            f"step() returned {_named(answer)}; it must return an AdaptationCommand, or a list of at most "
            f"{COMMANDS_MAX}. An empty one changes nothing."
        )
    if len(commands) > COMMANDS_MAX:
        raise AnswerRefused(f"step() returned {len(commands)} commands; at most {COMMANDS_MAX} are allowed.")
    return [_bytes_of(command, number) for number, command in enumerate(commands)]


def _bytes_of(command: object, number: int) -> bytes:
    if not isinstance(command, AdaptationCommand):
        raise AnswerRefused(f"Entry {number} of step()'s answer is {_named(command)}, not an AdaptationCommand.")
    # Checked by the reader, who trusts no writer.
    return command.SerializeToString(deterministic=True)


def _named(value: object) -> str:
    return "None" if value is None else f"an object of type {type(value).__name__}"


def read_commands(given: Sequence[bytes]) -> tuple[AdaptationCommand, ...]:
    """Return the commands that ask for something, as they came: whether a run obeys one is the run's own check.

    Raises AnswerRefused if one of them cannot be read, or if there is too much of them.
    """
    size = sum(map(len, given))
    if len(given) > COMMANDS_MAX or size > ANSWER_BYTES_MAX:
        raise AnswerRefused(
            f"The answer has {len(given)} commands with {size} bytes; at most {COMMANDS_MAX} commands with together "
            f"{ANSWER_BYTES_MAX} bytes are allowed."
        )
    return tuple(command for data in given if _asks(command := _read(data)))


def _read(data: bytes) -> AdaptationCommand:
    try:
        return decode(AdaptationCommand, data)
    except MessageRefused as refused:
        raise AnswerRefused(str(refused)) from refused


def _asks(command: AdaptationCommand) -> bool:
    return command.command_type != CommandType.COMMAND_UNKNOWN or command.WhichOneof("payload") is not None
