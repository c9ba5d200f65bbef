"""One process of a user's strategy: requests and answers.

Promises: as `peer_process`. Bytes that are no answer to the open question end the process.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from tolariad.strategy.answer import ANSWER_BYTES_MAX, COMMANDS_MAX
from tolariad.strategy.frames import ENDS, HEADER_BYTES, Frame, FrameRefused, Kind, Ready, frame, read_header
from tolariad.supervisor.output import Sink
from tolariad.supervisor.peer_process import PeerFailed, PeerLimits, PeerProcess


class StrategyLimits(PeerLimits, frozen=True, kw_only=True):
    """Every wait and bound, in one place so that tests can shorten them.

    * `answer_s`: the time within which an answer must come, `integration.tamiyo_timeout_s`.
    * `start_s`: the time within which the process must be ready. The user's file may import torch.
    * `backoff_s`: the wait before another start. It doubles with each start that led to no answer.
    * `backoff_max_s`: the longest wait before another start.
    """

    answer_s: float = 2.0
    start_s: float = 60.0
    backoff_s: float = 1.0
    backoff_max_s: float = 60.0


class StrategySetup(msgspec.Struct, frozen=True, kw_only=True):
    """The strategy of a run: `default`, `package.module:Name` or `file.py:Name`, and how its process is started."""

    strategy: str
    environment: Mapping[str, str]
    sinks: tuple[Sink, ...] = ()
    limits: StrategyLimits = StrategyLimits()
    command: tuple[str, ...] = (sys.executable, "-m", "tolariad.strategy")

    @property
    def shown(self) -> str:
        """The name for messages: of a file without its folders."""
        place, colon, name = self.strategy.rpartition(":")
        return f"{Path(place).name}{colon}{name}"


class StrategyFailed(Exception):
    """The strategy gave no answer. The text is a clause that follows its name."""


class Refused(StrategyFailed):
    """The user's code raised. The process goes on."""


class Answer(NamedTuple):
    """The commands as bytes, and the body of the frame that ended the answer."""

    commands: list[bytes]
    end: bytes


class StrategyProcess(PeerProcess):
    """Belongs to the event loop of the main thread."""

    def __init__(self, setup: StrategySetup) -> None:
        """Start the process. Raises OSError if that fails, and releases everything it had opened."""
        command = (*setup.command, "--name", setup.strategy)
        super().__init__("strategy", command, setup.environment, setup.sinks, setup.limits)

    async def ready(self) -> Ready:
        """Wait until the strategy was found. Raises Refused if there is none, and StrategyFailed."""
        said = await self._receive()
        if said.kind is Kind.REFUSED:
            raise Refused(_text(said.body))
        if said.kind is not Kind.READY:
            raise StrategyFailed(f"began with a {said.kind.name} frame instead of READY")
        try:
            return msgspec.msgpack.decode(said.body, type=Ready)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise StrategyFailed(f"sent a READY that cannot be read: {error}") from error

    async def request(self, kind: Kind, generation: int, body: bytes) -> Answer:
        """Send a request and return the answer. Raises Refused, and StrategyFailed: then the process must be killed."""
        await self.send(frame(kind, generation, body))
        commands: list[bytes] = []
        size = 0
        while True:
            said = await self._receive()
            if said.generation != generation:
                raise StrategyFailed(f"answered question {said.generation}, but {generation} was asked")
            if said.kind is Kind.REFUSED:
                raise Refused(_text(said.body))
            if said.kind in ENDS[kind]:
                return Answer(commands, said.body)
            if said.kind is not Kind.COMMAND or kind is not Kind.STEP:
                raise StrategyFailed(f"answered {kind.name} with a {said.kind.name} frame")
            commands.append(said.body)
            size += len(said.body)
            if len(commands) > COMMANDS_MAX or size > ANSWER_BYTES_MAX:
                raise StrategyFailed(f"sent more than {COMMANDS_MAX} commands, or more than {ANSWER_BYTES_MAX} bytes")

    async def _receive(self) -> Frame:
        try:
            size, kind, generation = read_header(await self.receive(HEADER_BYTES))
            return Frame(kind, generation, await self.receive(size))
        except PeerFailed as failed:
            raise StrategyFailed(str(failed)) from failed
        except FrameRefused as refused:
            raise StrategyFailed(f"sent bytes that are no answer: {refused}") from refused


def _text(body: bytes) -> str:
    return body.decode("utf-8", "replace")
