"""The run, as the other tasks of the daemon's loop see it: four coroutines over what the kernel has made durable.

Promises: nothing is answered before its event is on disk; a run that ends ends every wait with RunOver. It must not know:
the trainer, its process, the control socket.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from tolariad.control.outcome import Outcome, may_end, outcome_of
from tolariad.control.port import Change, ControlPort
from tolariad.core.decision import Accepted, Answer
from tolariad.core.interfaces import EpochResult, ValidationResult
from tolariad.core.vocabulary import Actor, AnyCommand, Event
from tolariad.core.vocabulary import checkpoints as ck
from tolariad.core.vocabulary import control as cv
from tolariad.core.vocabulary import run as rv
from tolariad.core.vocabulary import steps as sv
from tolariad.core.vocabulary.rollback import Rollback
from tolariad.storage import copy_checkpoint

_RUN_ENDS: Final = (rv.RunCompleted, rv.RunFailed, rv.RunStopped)
T = TypeVar("T")


class RunOver(Exception):
    """The run ended before what was waited for came about; the text says how."""


class TrainingTask:
    """Satisfies `ITrainingOrchestrator`. Made and used on the daemon's loop."""

    def __init__(
        self, port: ControlPort, run_dir: Path, copy: Callable[[Path, str, Path], None] = copy_checkpoint
    ) -> None:
        self._port = port
        self._run_dir = run_dir
        self._copy = copy

    async def train_epoch(self) -> EpochResult:
        """Wait until the epoch under way is done. Raises RunOver."""
        metrics: dict[str, float] = {}

        def finished(event: Event) -> EpochResult | None:
            if isinstance(event, sv.ValidationFinished):
                metrics.update(event.metrics)
            if not isinstance(event, sv.EpochFinished):
                return None
            return EpochResult(epoch=event.epoch, steps=event.steps, metrics=metrics, seconds=event.seconds)

        return await self._first(finished)

    async def validate(self) -> ValidationResult:
        """Wait for the next validation that ends. Raises RunOver."""

        def ended(event: Event) -> ValidationResult | None:
            if not isinstance(event, sv.ValidationFinished):
                return None
            metrics = event.metrics
            return ValidationResult(loss=metrics.get("loss"), accuracy=metrics.get("accuracy"), metrics=metrics)

        return await self._first(ended)

    async def checkpoint(self, path: str | Path) -> bool:
        """Take one at the next boundary and copy it to `path`; False where it was refused or came to nothing."""
        committed: list[ck.CheckpointCommitted] = []

        def keep(event: Event) -> None:
            if isinstance(event, ck.CheckpointCommitted):
                committed.append(event)

        if not await self._done(cv.Checkpoint(reason=f"for {path}"), keep):
            return False
        newest = committed[-1]
        folder = self._run_dir / "checkpoints" / newest.id
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._copy, folder, newest.manifest, Path(path))
        return True

    async def rollback(self, epoch: int) -> bool:
        """Go back to the newest checkpoint at or before the end of `epoch`; False where it was refused or aborted."""
        return await self._done(Rollback(epoch=epoch, reason="the training task"), lambda _: None)

    async def _done(self, command: AnyCommand, also: Callable[[Event], None]) -> bool:
        """Give an order and wait for its end; `also` sees the events until then."""
        seen: list[tuple[int, Event]] = []
        changed = asyncio.Event()

        def hear(change: Change) -> None:
            for seq, event in change.events:
                also(event)
                if may_end(event):
                    seen.append((seq, event))
            changed.set()

        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        end = self._port.subscribe(hear)
        try:
            self._port.submit(command, Actor(uid=os.getuid(), pid=os.getpid(), program="tolariad"), answered.set_result)
            answer = await answered
            if not isinstance(answer, Accepted):
                return False
            found: Outcome | None = None
            while (found := outcome_of(command, answer.seq, seen)) is None:
                changed.clear()
                await changed.wait()
            return found.state == "done"
        finally:
            end()

    async def _first(self, look: Callable[[Event], T | None]) -> T:
        """What `look` makes of the first event it knows. Raises RunOver."""
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def hear(change: Change) -> None:
            for _, event in change.events:
                if result.done():
                    return
                found = look(event)
                if found is not None:
                    result.set_result(found)
                elif isinstance(event, _RUN_ENDS):
                    result.set_exception(RunOver(f"the run ended: {type(event).__name__}"))

        end = self._port.subscribe(hear)
        try:
            return await result
        finally:
            end()
