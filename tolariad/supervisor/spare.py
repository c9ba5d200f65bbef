"""The spare: a process that has imported torch and waits to become the next trainer.

It imports only, unless `trainer.spare` is `built`. The task is built when it has taken over, so that nothing of the
user's code runs twice at a time, and files, configuration and random state are those that any new trainer finds. One
that was built is used only if the configuration is still the one that it was built from.

Promises: a spare holds no lock of the run and no device, and it ends with its daemon. One that fails costs a run
nothing: the next trainer is started as usual.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Final

from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.run.spare import Memory, Wanted, why_not
from tolariad.core.state.run_state import RunState
from tolariad.supervisor.procfs import available_bytes, resident_bytes
from tolariad.supervisor.started import StartedTrainer, TrainerSetup, Waits

_log: Final = logging.getLogger(__name__)

_LOOK_S: Final = 1.0
# Training goes on for so long before a spare is started: its imports take seconds of a core.
AFTER_S: Final = 5.0
_IMPORTED_WITHIN_S: Final = 300.0
# After one that failed, the next is tried later.
_AGAIN_S: Final = 300.0
_END_S: Final = 5.0


class Spares:
    """Keeps at most one spare. It belongs to the main thread's event loop; any thread may read `memory`."""

    def __init__(
        self, setup: TrainerSetup, wanted: Wanted, state: Callable[[], RunState], submit: Callable[[m.Input], None]
    ) -> None:
        """`state`: the state after the last durable event."""
        self._setup, self._wanted, self._state, self._submit = setup, wanted, state, submit
        self._waits: Waits = "built" if wanted == "built" else "imported"
        self._spare: StartedTrainer | None = None
        # The configuration when it was started.
        self._config = ""
        self._is_ready = False
        self._since = 0.0
        # Which trainer trains, and since when.
        self._trains, self._trains_since = 0, 0.0
        self._not_before = 0.0
        # Those that were given up and are not reaped yet.
        self._ending: set[StartedTrainer] = set()
        self._none_ends = asyncio.Event()
        self._none_ends.set()
        self._task: asyncio.Task[None] | None = None
        # The memory of a spare that is ready, in bytes, or None.
        self.memory: int | None = None

    def begin(self) -> None:
        """Keep a spare from now on, if one is wanted."""
        if self._wanted not in ("off", False):
            self._task = asyncio.get_running_loop().create_task(self._keep(), name="spare")
            self._task.add_done_callback(_log_failure)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                self._look(time.monotonic())
            except OSError as error:
                self._not_before = time.monotonic() + _AGAIN_S
                _log.warning("No spare trainer could be started: %s. The run goes on without it.", error)

    def _look(self, now: float) -> None:
        state = self._state()
        if state.run.phase in st.TERMINAL:
            self._give_up("the run has ended")
            return
        trainer = state.trainer
        trains = trainer.incarnation if trainer.alive and trainer.began else 0
        if trains != self._trains:
            self._trains, self._trains_since = trains, now
        ranks = self._setup.ranks
        memory = Memory(available_bytes(), resident_bytes(trainer.pid) * ranks if trainer.alive else 0, ranks)
        why = why_not(self._wanted, memory, exists=self._spare is not None)
        if self._spare is not None:
            self._attend(self._spare, why or self._why_stale(), now)
        elif trains and not why and now - self._trains_since >= AFTER_S and now >= self._not_before:
            self._spare = StartedTrainer(trains + 1, self._setup, waits=self._waits)
            self._is_ready, self._since, self._config = False, now, state.run.config
            asyncio.get_running_loop().add_reader(self._spare.child.pidfd, self._ended, self._spare)

    def _attend(self, spare: StartedTrainer, why: str, now: float) -> None:
        """Give up one that there is no memory for, or that does not get ready. Note one that is ready."""
        if why:
            self._give_up(why)
        elif not self._is_ready and spare.said_ready():
            self._is_ready = True
            self._note(m.Spare.READY, spare)
        elif not self._is_ready and now - self._since > _IMPORTED_WITHIN_S:
            self._not_before = now + _AGAIN_S
            self._give_up(f"it did not get ready within {_IMPORTED_WITHIN_S:.0f} s")
        self.memory = _held(spare) if self._spare is not None and self._is_ready else None

    def _why_stale(self) -> str:
        changed = self._waits == "built" and self._state().run.config != self._config
        return "it was built from an earlier configuration" if changed else ""

    def take(self, number: int, printed: str) -> StartedTrainer | None:
        """Return the spare as trainer `number`, if there is one. One that still imports is ahead of a new process.

        `printed`: the mark of the traceback that an earlier trainer printed.
        """
        spare = self._spare
        if spare is None:
            return None
        why = "the next trainer has another number" if spare.number != number else self._why_stale()
        if why:
            self._give_up(why)
            return None
        try:
            spare.go(printed)
        except OSError:
            self._give_up("it had ended")
            return None
        asyncio.get_running_loop().remove_reader(spare.child.pidfd)
        self._note(m.Spare.USED, spare)
        self._spare = self.memory = None
        return spare

    def _give_up(self, why: str) -> None:
        spare, self._spare, self.memory = self._spare, None, None
        if spare is not None:
            self._note(m.Spare.GIVEN_UP, spare, why)
            self._ending.add(spare)
            self._none_ends.clear()
            spare.kill()

    def _ended(self, spare: StartedTrainer) -> None:
        """Release a spare whose process has ended; no other one was told to."""
        asyncio.get_running_loop().remove_reader(spare.child.pidfd)
        if spare is self._spare:
            self._not_before = time.monotonic() + _AGAIN_S
            self._give_up("its process ended by itself")
        spare.release()
        self._ending.discard(spare)
        if not self._ending:
            self._none_ends.set()

    def _note(self, change: m.Spare, spare: StartedTrainer, why: str = "") -> None:
        pid = spare.child.pid
        changed = m.SpareChanged(
            skippable=True, incarnation=spare.number, pid=pid, spare=change, memory=_held(spare), why=why
        )
        self._submit(m.SpareNoted(recorded=changed))

    async def close(self) -> None:
        """End the spare, and wait until it is reaped."""
        if self._task is not None:
            self._task.cancel()
        self._give_up("the daemon ends")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await self._none_ends.wait()


def _held(spare: StartedTrainer) -> int:
    """Return the memory that a spare holds, all its ranks together."""
    return sum(resident_bytes(pid) for pid in spare.pids)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("Spare trainers are not kept any more; the run goes on without one", exc_info=error)
