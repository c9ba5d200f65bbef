"""What an analysis costs a run that trains on: step times during and outside, and its time on a core.

A real daemon trains the digits CNN. Three times: steps without an analysis, then one of the newest checkpoint. The
times are between the ends of two steps of an epoch, as the trainer has them. Printed; asserted is only that the run
went on and that every analysis answered.

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

import pytest

from tests.bench.machine import machine
from tests.bench.timed_task import times_of
from tests.daemon.harness import DaemonProcess, events
from tests.supervisor.strategists import becomes
from tolariad.core.checkpoints.words import CheckpointCommitted, CheckpointRef
from tolariad.core.pruning.phase import PruningPhase
from tolariad.core.pruning.words import AnalyzeCheckpoint
from tolariad.core.settings.rules import read_resolved
from tolariad.core.steps.words import StepCompleted
from tolariad.supervisor.analyst import Analyst, AnalystSetup

ROUNDS = int(os.environ.get("TOLARIA_BENCH_ROUNDS", "3"))
OUTSIDE_S = 8.0
SETS = ["task_options.model=cnn", "torch_threads=1", "checkpoint_interval_epochs=10", "journal.segment_bytes=16000000"]


class Beside:
    """An analyst beside a live run. `times`: when each analysis began and ended, on the monotonic clock."""

    def __init__(self, run_dir: Path, trainer: int) -> None:
        config = run_dir / "config.resolved.json"
        self.replies = []
        self.times = []
        self.cpu_s = []
        self._run_dir = run_dir
        setup = AnalystSetup(
            run_dir=run_dir,
            config=config,
            prune=read_resolved(config.read_bytes()).prune,
            environment=dict(os.environ),
            cores=lambda: tuple(os.sched_getaffinity(trainer)),
        )
        self.analyst = Analyst(setup, self.replies.append)

    async def analyse(self) -> None:
        """Analyse the newest checkpoint."""
        newest = [one for one in events(self._run_dir) if isinstance(one, CheckpointCommitted)][-1]
        cycle, cpu_s = len(self.replies) + 1, children_s()
        began = time.monotonic_ns()
        reference = CheckpointRef(
            id=newest.id, step=newest.step, epoch=newest.epoch, batch=newest.batch, manifest=newest.manifest
        )
        self.analyst.obey(
            AnalyzeCheckpoint(
                cycle=cycle,
                checkpoint=reference,
                epoch=newest.epoch,
                phase=PruningPhase.VALIDATION_ONLY,
                share=0.05,
                cap=0.2,
                importance=f"importance/p{cycle:06d}.safetensors",
            )
        )
        await becomes(lambda: len(self.replies) == cycle, 300.0)
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
        beside = Beside(run_dir, int(status["trainer"]["pid"]))
        for _ in range(ROUNDS):
            await asyncio.sleep(OUTSIDE_S)
            await beside.analyse()
        await asyncio.sleep(1.0)
        await beside.analyst.close()
        daemon.send(signal.SIGTERM)
        daemon.wait()
    finally:
        daemon.kill()
    # The first step of an epoch has its validation before it.
    firsts = {one.step for one in events(run_dir) if isinstance(one, StepCompleted) and one.batch == 1}
    inside, outside = [], []
    for (_, before), (step, after) in pairwise(times_of(steps.read_bytes())):
        if step in firsts or step < 300:
            continue
        is_inside = any(began <= before and after <= ended for began, ended in beside.times)
        (inside if is_inside else outside).append((after - before) / 1e9)
    shown("outside", outside)
    shown("during an analysis", inside)
    for reply, (began, ended), cpu_s in zip(beside.replies, beside.times, beside.cpu_s, strict=True):
        correlation = "" if reply.found is None else f"   rank correlation {reply.found.correlation:.2f}"
        print(f"analysis: {(ended - began) / 1e9:6.1f} s, {cpu_s:.2f} s on a core{correlation}{reply.why}")

    assert [reply.why for reply in beside.replies] == [""] * ROUNDS
    assert inside
