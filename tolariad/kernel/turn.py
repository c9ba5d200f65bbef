"""What one turn of the kernel collects, and what it publishes once the turn is durable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from tolariad.core.decision import Answer
from tolariad.core.engine import Decided
from tolariad.core.inputs import Now
from tolariad.core.state import RunState
from tolariad.core.vocabulary import DaemonEffect, Effect, Event, encode_event
from tolariad.core.vocabulary.base import Seq
from tolariad.core.vocabulary.checkpoints import DeleteCheckpoint, SweepCheckpoints
from tolariad.core.vocabulary.run import ExitDaemon
from tolariad.core.vocabulary.snapshots import PrepareRing, VerifySnapshot
from tolariad.core.vocabulary.steps import StepCompleted
from tolariad.core.vocabulary.trainer import ExecutionContextRecorded, KillTrainer, SpawnTrainer

# Effects that the daemon's loop carries out. The kernel sends every other effect to the trainer.
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
    """One durable turn. The kernel's thread passes it to a callback, which must hand it over and return quickly.

    `failure`: why nothing can be recorded any more, or None. `write_ns`: how long the write of the frame took.
    """

    state: RunState
    events: tuple[tuple[Seq, Event], ...]
    effects: tuple[DaemonEffect, ...]
    failure: str | None
    write_ns: int = 0


class Turn:
    """What one turn collects before its frame is written.

    `now` is the reading of the clock; `began_mono` that of the first turn whose steps were held back in this one.
    """

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

    def add(self, decided: Decided[RunState], answer: AnswerTo | None) -> None:
        """Keep events, effects and answer of one decision until the commit."""
        for seq, event in enumerate(decided.events, decided.state.seq - len(decided.events) + 1):
            if type(event) is not StepCompleted:
                self.only_steps = False
                if type(event) is ExecutionContextRecorded:
                    self.context = event
            self.events.append((seq, event))
            self.raw.append(encode_event(event))
        self.effects.extend(decided.effects)
        if answer is not None and decided.answer is not None:
            self.answers.append((answer, decided.answer))

    @property
    def published(self) -> tuple[DaemonEffect, ...]:
        """Return the effects that the daemon's loop carries out."""
        # Nearly every turn is one of steps, which has no effects: it makes no new tuple.
        return tuple(one for one in self.effects if isinstance(one, DAEMON_EFFECTS)) if self.effects else ()
