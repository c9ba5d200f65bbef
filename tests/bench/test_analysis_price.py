"""The price of an analysis for a run that trains on: step times during and outside, and its time on a core.

A real daemon trains the digits CNN. Three cases are measured. They are steps without an analysis, an analysis of the
newest checkpoint that yields to the training, and one with its share of a core. The times are between the ends of two
steps of an epoch, as the trainer has them. If the training leaves no core, the first kind waits until half of its limit
and begins again as the second. Only the time before that counts as idle. Printed; asserted is only that the run went on
and that every analysis answered.

    python -m pytest -m bench -s tests/bench/test_analysis_price.py
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time
from itertools import pairwise
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from tests.bench.machine import machine
from tests.bench.timed_task import times_of
from tests.daemon.harness import DaemonProcess
from tests.recorded import events_of
from tests.waiting import becomes_true
from tolariad.core.checkpoints.words import CheckpointCommitted
from tolariad.core.pruning.analysis import AnalysisRequest
from tolariad.core.pruning.phase import PruningPhase
from tolariad.core.pruning.words import AnalyzeCheckpoint
from tolariad.core.settings.rules import read_resolved
from tolariad.core.steps.words import StepCompleted
from tolariad.supervisor.analyst import Analyst, AnalystSetup

ROUNDS = int(os.environ.get("TOLARIA_BENCH_ROUNDS", "3"))
OUTSIDE_S = 8.0
LIMIT_S = 60.0
SETS = ["task_options.model=cnn", "torch_threads=1", "checkpoint_interval_epochs=10", "journal.segment_bytes=16000000"]


class Beside:
    """An analyst beside a live run. `times`: when each analysis began and ended, on the monotonic clock."""

    def __init__(self, run_dir: Path, trainer: int, priority: Literal["idle", "normal"]) -> None:
        config = run_dir / "config.resolved.json"
        self.replies = []
        self.times = []
        self.cpu_s = []
        self._run_dir = run_dir
        setup = AnalystSetup(
            run_dir=run_dir,
            config=config,
            prune=msgspec.structs.replace(read_resolved(config.read_bytes()).prune, analysis_priority=priority),
            environment=dict(os.environ),
            cores=lambda: tuple(os.sched_getaffinity(trainer)),
        )
        self.analyst = Analyst(setup, self.replies.append)

    async def analyse(self, cycle: int) -> None:
        """Analyse the newest checkpoint. `cycle`: not used before in the run."""
        newest = [one for one in events_of(self._run_dir) if isinstance(one, CheckpointCommitted)][-1]
        answered, cpu_s = len(self.replies), children_s()
        began = time.monotonic_ns()
        request = AnalysisRequest(
            cycle=cycle,
            checkpoint=newest.id,
            manifest=newest.manifest,
            epoch=newest.epoch,
            phase=PruningPhase.VALIDATION_ONLY,
            share=0.05,
            cap=0.2,
            output=f"importance/p{cycle:06d}.safetensors",
        )
        self.analyst.obey(AnalyzeCheckpoint(request=request, limit_s=LIMIT_S))
        assert await becomes_true(lambda: len(self.replies) > answered, 300.0)
        self.times.append((began, time.monotonic_ns()))
        self.cpu_s.append(children_s() - cpu_s)


def children_s() -> float:
    """The time on a core of the processes that have ended; the daemon has not."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def shown(name: str, times: list[float]) -> None:
    ordered = sorted(times)
    p50, p99 = (1e3 * ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99))
    print(f"{name:<28}{len(ordered):>8} steps   p50 {p50:7.3f} ms   p99 {p99:7.3f} ms")


def within(times: list[tuple[int, int]], before: int, after: int) -> bool:
    """Return whether a step lies in one of these times."""
    return any(began <= before and after <= ended for began, ended in times)


@pytest.mark.bench
async def test_steps_during_and_outside_an_analysis(tmp_path, monkeypatch):
    """The analysis has SCHED_IDLE, one thread, and not the recorder's core."""
    print(f"\n{machine()}")
    run_dir, steps = tmp_path / "run", tmp_path / "steps"
    monkeypatch.setenv("TOLARIA_STEPS", str(steps))
    task = f"{Path(__file__).parent / 'timed_task.py'}:Timed"
    daemon = DaemonProcess(run_dir, task=task, epochs=1_000_000, sets=SETS, trainer_command=None)
    try:
        status = daemon.until(lambda status: (status.get("step") or 0) > 300, "training")
        idle, ordinary = (Beside(run_dir, int(status["trainer"]["pid"]), kind) for kind in ("idle", "normal"))
        for turn in range(ROUNDS):
            for place, beside in enumerate((idle, ordinary)):
                await asyncio.sleep(OUTSIDE_S)
                await beside.analyse(2 * turn + place + 1)
        await asyncio.sleep(1.0)
        for beside in (idle, ordinary):
            await beside.analyst.close()
        daemon.send(signal.SIGTERM)
        daemon.wait()
    finally:
        daemon.kill()
    # The first step of an epoch has its validation before it.
    firsts = {one.step for one in events_of(run_dir) if isinstance(one, StepCompleted) and one.batch == 1}
    yielding = [(began, min(ended, began + int(LIMIT_S / 2 * 1e9))) for began, ended in idle.times]
    outside, beside_idle, beside_ordinary = [], [], []
    for (_, before), (step, after) in pairwise(times_of(steps.read_bytes())):
        if step in firsts or step < 300:
            continue
        kind = outside
        if any(began <= after and before <= ended for began, ended in (*idle.times, *ordinary.times)):
            kind = beside_ordinary if within(ordinary.times, before, after) else beside_idle
            if kind is beside_idle and not within(yielding, before, after):
                continue
        kind.append((after - before) / 1e9)
    shown("no analysis", outside)
    shown("one that yields (idle)", beside_idle)
    shown("one that shares (normal)", beside_ordinary)
    for name, beside in (("idle", idle), ("normal", ordinary)):
        for reply, (began, ended), cpu_s in zip(beside.replies, beside.times, beside.cpu_s, strict=True):
            correlation = "" if reply.found is None else f"   rank correlation {reply.found.correlation:.2f}"
            print(f"analysis, {name:<8}{(ended - began) / 1e9:6.1f} s, {cpu_s:.2f} s on a core{correlation}{reply.why}")

    assert [reply.why for reply in idle.replies + ordinary.replies] == [""] * (2 * ROUNDS)
    assert beside_idle
    assert beside_ordinary
