"""Carries out the analysis of checkpoints for pruning: a process for each, one at a time.

Promises: each AnalyzeCheckpoint becomes exactly one AnalysisReply, whatever fails, unless it is cancelled. A result was
checked by core's rules. The checkpoint is not removed meanwhile. A process that does not answer in time is killed, and
none is left after `close`. The run never waits.

Where it runs: on the recorder's core, if the recorder has one of its own and leaves most of it idle. Training has the
others. The process runs there only if nothing else wants the core. Without such a core it may run on all of them, as
idle as that. If it starves there, another one begins again that takes turns with the training: it is stopped for most
of the time (decision 0065).
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from tolariad import run_files
from tolariad.core import messages as m
from tolariad.core.calc.pruning.analysis import AnalysisAnswer, AnalysisRequest, channels_of, choice_of, refusal_of
from tolariad.core.calc.pruning.known import KnownImportance
from tolariad.core.calc.pruning.turns import LOOK_S, PAUSE_S, RUN_S, Turn, too_slow
from tolariad.core.calc.pruning.verdict import loss_by_accuracy
from tolariad.core.calc.settings.pruning import Prune
from tolariad.leyline import MessageRefused
from tolariad.leyline.pruning import LENGTH_BYTES, AnalysisFailed, framed, length_of, read_answer, write_request
from tolariad.loop_files import in_thread
from tolariad.processor_time import has_starved
from tolariad.storage import held
from tolariad.storage.importance import read_importance
from tolariad.supervisor.output import Sink
from tolariad.supervisor.peer_process import PeerFailed, PeerLimits, PeerProcess, stacks_in
from tolariad.supervisor.process import Session

_log: Final = logging.getLogger(__name__)


class AnalystSetup(msgspec.Struct, frozen=True, kw_only=True):
    """A run, and how the process of an analysis is started.

    `core`: gives the core that only the recorder uses; none: there is no such core. `cores`: all of the run; none: all
    of the machine.
    """

    run_dir: Path
    config: Path
    prune: Prune
    environment: Mapping[str, str]
    sinks: tuple[Sink, ...] = ()
    core: Callable[[], tuple[int, ...]] = tuple
    cores: tuple[int, ...] = ()
    limits: PeerLimits = PeerLimits()
    command: tuple[str, ...] = (sys.executable, "-m", "tolariad.trainer", "--analyse")


class Analyst:
    """Belongs to one event loop."""

    def __init__(self, setup: AnalystSetup, submit: Callable[[m.AnalysisReply], None]) -> None:
        self._setup = setup
        self._submit = submit
        self._task: asyncio.Task[None] | None = None
        self._cycle = 0
        # The importance that the run knows already.
        self._known: KnownImportance | None = None
        self._ending: set[asyncio.Task[None]] = set()

    def obey(self, effect: m.AnalyzeCheckpoint | m.CancelAnalysis) -> None:
        """Begin an analysis, or end the one of this cycle without a reply."""
        if isinstance(effect, m.CancelAnalysis):
            if self._task is not None and self._cycle == effect.cycle:
                self._task.cancel()
        elif self._task is not None and not self._task.done() and not self._task.cancelling():
            self._submit(
                m.AnalysisReply(cycle=effect.request.cycle, why=f"the analysis of cycle {self._cycle} is still running")
            )
        else:
            self._cycle = effect.request.cycle
            self._task = asyncio.get_running_loop().create_task(self._analyse(effect, self._task))
            # The loop itself holds a task only weakly.
            self._ending.add(self._task)
            self._task.add_done_callback(self._ending.discard)

    async def _analyse(self, effect: m.AnalyzeCheckpoint, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            # It was cancelled, and ends its process: never are there two.
            await asyncio.wait({before})
        found, why = None, ""
        try:
            found = await self._found(effect)
        except (PeerFailed, AnalysisFailed, MessageRefused) as failed:
            why = str(failed)
        except Exception as error:  # noqa: BLE001 - the run goes on, whatever is wrong with an analysis
            _log.exception("Checkpoint %s could not be analysed", effect.request.checkpoint)
            why = f"it could not be begun: {type(error).__name__}: {error}"
        finally:
            if found is None and effect.request.output:
                # A file that no event names would stay for ever.
                with suppress(OSError):
                    await in_thread((self._setup.run_dir / effect.request.output).unlink)
        if why:
            _log.warning("Pruning: the analysis of checkpoint %s gave no result: %s", effect.request.checkpoint, why)
        self._submit(m.AnalysisReply(cycle=effect.request.cycle, found=found, why=why))

    async def _found(self, effect: m.AnalyzeCheckpoint) -> m.PruneAnalyzed:
        """Return the checked result. Raises PeerFailed, AnalysisFailed, MessageRefused, OSError."""
        request = effect.request
        self._known = await in_thread(read_importance, self._setup.run_dir, request.former)
        with held(self._setup.run_dir / "checkpoints" / request.checkpoint):
            answer = await self._answer(request, effect.limit_s)
        refusal = refusal_of(request, answer, self._setup.prune)
        if refusal:
            raise AnalysisFailed(f"The answer is refused: {refusal}.")
        if request.output:
            size = await in_thread(_size_of, self._setup.run_dir, request.output)
            if size != answer.file_bytes:
                raise AnalysisFailed(
                    f"The answer is refused: {request.output} has {size} bytes, but it says {answer.file_bytes}."
                )
        return found_in(request, answer)

    async def _answer(self, request: AnalysisRequest, limit_s: float) -> AnalysisAnswer:
        """Return the answer of a process that gives way, or, if that starves or takes half of the time, of another."""
        priority, core = self._setup.prune.analysis_priority, self._setup.core()
        left_s = limit_s
        if core or priority == "idle":
            began = time.monotonic()
            try:
                return await self._attempt(request, limit_s / 2, Turn.IDLE, core)
            except TimeoutError:
                # Linux lets no process without privileges leave SCHED_IDLE, so another one begins again.
                left_s -= time.monotonic() - began
                _log.info(
                    "Pruning: no core was free to analyse checkpoint %s; its analysis begins again and takes turns "
                    "with the training",
                    request.checkpoint,
                )
        try:
            return await self._attempt(request, left_s, Turn.ALTERNATE if priority == "idle" else Turn.SHARE)
        except TimeoutError:
            raise AnalysisFailed(too_slow(limit_s)) from None

    async def _attempt(
        self, request: AnalysisRequest, limit_s: float, turn: Turn, core: tuple[int, ...] = ()
    ) -> AnalysisAnswer:
        """Return the answer of one process. Raises TimeoutError, AnalysisFailed, MessageRefused, OSError."""
        process = self._started(turn, core)
        try:
            async with asyncio.timeout(limit_s) as deadline:
                beside = asyncio.create_task(_paced(process, turn, deadline, limit_s))
                try:
                    return await _asked(process, request, limit_s, self._known)
                finally:
                    beside.cancel()
        except TimeoutError:
            if turn is not Turn.IDLE:
                # An idle one had no core, as far as is known.
                await process.kill_with_stacks()
            raise
        except PeerFailed as failed:
            raise AnalysisFailed(f"Its process {failed}.") from failed
        finally:
            output = await process.end()
            if stacks := stacks_in(output):
                _log.warning("The stacks of the analysis, before it was killed:\n%s", stacks)

    def _started(self, turn: Turn, core: tuple[int, ...]) -> PeerProcess:
        setup = self._setup
        # The daemon may be pinned to the recorder's core, and its children inherit that.
        cores = ",".join(map(str, core or setup.cores))
        command = (
            *(*setup.command, "--run", str(setup.run_dir), "--config-json", str(setup.config)),
            *("--cores", cores, "--priority", "idle" if turn is Turn.IDLE else "normal"),
        )
        # In the daemon's session the recorder's threads come first at once, whatever their scheduling class is.
        session = Session.DAEMONS if core else Session.OWN
        return PeerProcess("analysis", command, setup.environment, setup.sinks, setup.limits, session=session)

    async def close(self) -> None:
        """End the process, and drop what is in flight."""
        for task in tuple(self._ending):
            if not task.cancelling():
                task.cancel()
        await asyncio.gather(*self._ending, return_exceptions=True)


async def _paced(process: PeerProcess, turn: Turn, deadline: asyncio.Timeout, limit_s: float) -> None:
    """Let an idle process end when it starves, and one that takes turns run for a short time again and again.

    After half of its time the second one is not stopped any more.
    """
    loop = asyncio.get_running_loop()
    half = loop.time() + limit_s / 2
    if turn is Turn.IDLE:
        while True:
            await asyncio.sleep(LOOK_S)
            if has_starved(process.pid):
                deadline.reschedule(loop.time())
                return
    while turn is Turn.ALTERNATE and loop.time() < half:
        try:
            await asyncio.sleep(RUN_S)
            process.pause()
            await asyncio.sleep(PAUSE_S)
        finally:
            process.resume()


async def _asked(
    process: PeerProcess, request: AnalysisRequest, limit_s: float, known: KnownImportance | None
) -> AnalysisAnswer:
    request_id = str(uuid.uuid4())
    await process.send(framed(write_request(request, request_id, limit_s, known)))
    size = length_of(await process.receive(LENGTH_BYTES))
    return read_answer(await process.receive(size), request_id)


def found_in(request: AnalysisRequest, answer: AnalysisAnswer) -> m.PruneAnalyzed:
    """Return the event with the part of the answer that the journal keeps."""
    choice = choice_of(answer.groups, answer.shapes, answer.parameters, request)
    measured, loss = answer.measured, answer.measured.loss_before
    return m.PruneAnalyzed(
        cycle=request.cycle,
        decision=answer.decision,
        reasons=answer.reasons,
        units=answer.units,
        sha256=answer.masks_sha256,
        plan=answer.plan,
        channels=sum(len(answer.units.get(layer.name, ())) * layer.channels for layer in choice.layers),
        total=channels_of(choice.layers),
        pruned_parameters=answer.parameters_masked,
        total_parameters=choice.total,
        groups=len(answer.groups),
        refused=len(answer.refused),
        samples=answer.samples,
        estimator=answer.estimator,
        spread=measured.spread,
        correlation=answer.correlation,
        stability=answer.stability,
        importance=request.output,
        importance_size=answer.file_bytes,
        seconds=answer.seconds,
        accuracy=measured.accuracy_before if loss is None else None,
        accuracy_masked=measured.accuracy if loss is None else None,
        loss=loss,
        loss_masked=None if loss is None else loss_by_accuracy(measured.accuracy, loss),
    )


def _size_of(run: Path, file: str) -> int:
    """Return the size of a file of the run; 0 if it is not there."""
    try:
        descriptor = run_files.open_file(run, file, os.O_RDONLY)
    except OSError:
        return 0
    try:
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
