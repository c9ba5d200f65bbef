"""What one turn of the kernel gathers, and what of it is told when it is durable.

It must not know: where any of it came from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from tolariad.core.decision import Answer
from tolariad.core.inputs import Now
from tolariad.core.state import RunState
from tolariad.core.vocabulary import DaemonEffect, Effect, Event
from tolariad.core.vocabulary.base import Seq
from tolariad.core.vocabulary.checkpoints import DeleteCheckpoint, SweepCheckpoints
from tolariad.core.vocabulary.run import ExitDaemon
from tolariad.core.vocabulary.snapshots import PrepareRing, VerifySnapshot
from tolariad.core.vocabulary.trainer import ExecutionContextRecorded, KillTrainer, SpawnTrainer

DAEMON_EFFECTS: Final = (
    SpawnTrainer,
    KillTrainer,
    ExitDaemon,
    DeleteCheckpoint,
    SweepCheckpoints,
    PrepareRing,
    VerifySnapshot,
)

AnswerTo = Callable[[Answer], None]


class Published(msgspec.Struct, frozen=True):
    """One durable turn, as the loop learns of it (in the kernel's thread: hand it over, do nothing long).

    `write_ns`: for how long its frame was on its way to the disk.
    """

    state: RunState
    events: tuple[tuple[Seq, Event], ...]
    effects: tuple[DaemonEffect, ...]
    failure: str | None
    write_ns: int = 0


class Turn:
    """What one turn gathers before its frame is written."""

    def __init__(self, now: Now) -> None:
        self.now = now
        self.began_mono = now.mono
        self.only_steps = True
        self.context: ExecutionContextRecorded | None = None
        self.events: list[tuple[Seq, Event]] = []
        self.raw: list[bytes] = []
        self.effects: list[Effect] = []
        self.answers: list[tuple[AnswerTo, Answer]] = []
        self.write_ns = 0

    @property
    def published(self) -> tuple[DaemonEffect, ...]:
        """The effects that are the daemon's."""
        return tuple(one for one in self.effects if isinstance(one, DAEMON_EFFECTS)) if self.effects else ()
