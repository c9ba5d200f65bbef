"""A strategy's answer to one packet: as its `step` returns it, as bytes, and checked.

Promises: an answer that passes has at most 16 valid commands, and names only seeds of the packet. One invalid command
refuses the whole answer, so that half of a decision is never obeyed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tolariad.leyline import (
    AdaptationCommand,
    CommandRefused,
    CommandType,
    MessageRefused,
    SystemStatePacket,
    check_command,
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


def read_commands(given: Sequence[bytes], packet: SystemStatePacket) -> tuple[AdaptationCommand, ...]:
    """Return the commands that change something. Raises AnswerRefused if one of them is not valid for this packet."""
    size = sum(map(len, given))
    if len(given) > COMMANDS_MAX or size > ANSWER_BYTES_MAX:
        raise AnswerRefused(
            f"The answer has {len(given)} commands with {size} bytes; at most {COMMANDS_MAX} commands with together "
            f"{ANSWER_BYTES_MAX} bytes are allowed."
        )
    seeds = {seed.seed_id for seed in packet.seed_states}
    commands = [_read(data, seeds) for data in given]
    names = [command.command_id for command in commands if command.command_id]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise AnswerRefused(f"Two commands of the answer have the `command_id` {twice!r}; give each its own.")
    return tuple(one for one in commands if one.command_type != CommandType.COMMAND_UNKNOWN)


def _read(data: bytes, seeds: set[str]) -> AdaptationCommand:
    try:
        command = decode(AdaptationCommand, data)
        check_command(command)
    except (MessageRefused, CommandRefused) as refused:
        raise AnswerRefused(str(refused)) from refused
    if command.command_type == CommandType.COMMAND_SEED and command.target_seed_id not in seeds:
        known = ", ".join(sorted(seeds)[:8]) or "none"
        raise AnswerRefused(f"COMMAND_SEED names the seed {command.target_seed_id[:80]!r}; the run has {known}.")
    return command
