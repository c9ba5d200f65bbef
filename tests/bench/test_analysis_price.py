"""The price of an analysis for a run that trains on: step times during and outside, and how long it takes.

A real daemon trains the digits CNN. Two ways to analyse its newest checkpoint come in turn. One is that of the daemon:
idle, on the recorder's core. The other is the way before decision 0065: an ordinary process on the cores of the
training. A step is compared with those before and after the same analysis. The times are between the ends of two steps
of an epoch, as the trainer has them. Of each step the training's thread computed for `on a core`, and waited for one
for `ready`. Printed; asserted is only that the run went on and that every analysis answered.

    python -m pytest -m bench -s tests/bench/test_analysis_price.py

TOLARIA_BENCH_THREADS=2 gives torch all of two cores, so that the recorder has none of its own.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from tests.bench.machine import machine
from tests.bench.timed_task import times_of
from tests.daemon.harness import DaemonProcess, of_type
from tests.waiting import becomes_true
from tolariad.core import messages as m
from tolariad.core.calc.pruning.analysis import AnalysisRequest
from tolariad.core.calc.pruning.phase import PruningPhase
from tolariad.core.calc.settings.rules import read_resolved
from tolariad.supervisor.analyst import Analyst, AnalystSetup

ROUNDS = int(os.environ.get("TOLARIA_BENCH_ROUNDS", "4"))
THREADS = int(os.environ.get("TOLARIA_BENCH_THREADS", "1"))
OUTSIDE_S = 3.0
LIMIT_S = 120.0
SETS = [
    *("task_options.model=cnn", f"torch_threads={THREADS}", "journal.segment_bytes=16000000"),
    # A cycle begins with each checkpoint, and checkpoints are taken by order alone.
    *("prune.enabled=true", "pruning_phase_transition_epoch=900000", "prune.last_epoch=950000"),
    *("checkpoint.min_gap_s=0", "checkpoint.interval_s=100000", "checkpoint_interval_epochs=1000000"),
    f"prune.analysis_timeout_s={LIMIT_S:g}",
]


class Moment(NamedTuple):
    """A time on the monotonic clock, and what the training's thread has had until then: on a core, ready. All in ns."""

    at: int
    ran: int
    waited: int


class Phase(NamedTuple):
    """A part of the run, with an analysis of this kind or with none."""

    kind: str
    began: Moment
    ended: Moment


class Steps(NamedTuple):
    """The steps of a phase, in ms: median, mean, 99th percentile; of a mean step on a core, and ready for one."""

    p50: float
    mean: float
    p99: float
    ran: float
    ready: float

    def __str__(self) -> str:
        return (
            f"p50 {self.p50:6.2f}  mean {self.mean:6.2f}  p99 {self.p99:6.2f}  "
            f"on a core {self.ran:5.2f}  ready {self.ready:5.2f} ms"
        )


def moment(trainer: int) -> Moment:
    ran, waited, _ = Path(f"/proc/{trainer}/task/{trainer}/schedstat").read_bytes().split()
    return Moment(time.monotonic_ns(), int(ran), int(waited))


async def by_daemon(daemon: DaemonProcess, _: int) -> str:
    """Let the daemon analyse a new checkpoint. Return why that failed, or nothing."""

    def status():
        return daemon.call("PruneStatus")["pruning"]

    before = status()
    daemon.call("Checkpoint")
    for _ in range(int(10 * LIMIT_S)):
        # Seldom: each call takes time on the recorder's core.
        await asyncio.sleep(0.1)
        now = status()
        if now["cycles"] > before["cycles"] and now["analyzing"] is None:
            return "" if now["failures"] == before["failures"] else now["why_failed"]
    return "it did not end"


async def as_before(daemon: DaemonProcess, trainer: int) -> str:
    """Analyse the newest checkpoint by an ordinary process on the cores of the training."""
    config = daemon.run_dir / "config.resolved.json"
    newest = of_type(daemon.run_dir, m.CheckpointCommitted)[-1]
    prune = msgspec.structs.replace(read_resolved(config.read_bytes()).prune, analysis_priority="normal")
    replies = []
    setup = AnalystSetup(
        run_dir=daemon.run_dir,
        config=config,
        prune=prune,
        environment=dict(os.environ),
        cores=tuple(os.sched_getaffinity(trainer)),
    )
    analyst = Analyst(setup, replies.append)
    request = AnalysisRequest(
        cycle=900_000,
        checkpoint=newest.id,
        manifest=newest.manifest,
        epoch=newest.epoch,
        phase=PruningPhase.VALIDATION_ONLY,
        share=0.05,
        cap=0.2,
    )
    analyst.obey(m.AnalyzeCheckpoint(request=request, limit_s=LIMIT_S))
    assert await becomes_true(lambda: replies, 2 * LIMIT_S)
    await analyst.close()
    return replies[0].why


KINDS: dict[str, Callable[[DaemonProcess, int], Awaitable[str]]] = {"as before": as_before, "by daemon": by_daemon}


async def phases_of(daemon: DaemonProcess, trainer: int) -> list[Phase]:
    """Go through all phases: one without an analysis before and after each one with it."""
    phases, kinds = [], [*KINDS.items()] * ROUNDS
    for name, analyse in (*kinds, ("", None)):
        began = moment(trainer)
        await asyncio.sleep(OUTSIDE_S)
        phases.append(Phase("", began, moment(trainer)))
        if analyse is not None:
            began = moment(trainer)
            assert await analyse(daemon, trainer) == ""
            phases.append(Phase(name, began, moment(trainer)))
            await asyncio.sleep(0.5)
    return phases


def steps_in(times: list[tuple[int, int]], phase: Phase) -> Steps:
    """Return the steps that lie in a phase. `times`: begin and end of each."""
    took = sorted(
        (after - before) / 1e6 for before, after in times if phase.began.at <= before < after <= phase.ended.at
    )
    ran, waited = phase.ended.ran - phase.began.ran, phase.ended.waited - phase.began.waited
    return Steps(
        statistics.median(took),
        statistics.fmean(took),
        took[99 * len(took) // 100],
        ran / 1e6 / len(took),
        waited / 1e6 / len(took),
    )


def show(times: list[tuple[int, int]], phases: list[Phase]) -> None:
    """Print each analysis with its neighbours, and the medians of each kind."""
    of_kind: dict[str, list[tuple[float, float, float]]] = {name: [] for name in KINDS}
    for before, beside, after in zip(phases, phases[1:], phases[2:], strict=False):
        if not beside.kind:
            continue
        out, steps, later = (steps_in(times, one) for one in (before, beside, after))
        seconds = (beside.ended.at - beside.began.at) / 1e9
        ratios = steps.p50 / ((out.p50 + later.p50) / 2), steps.mean / ((out.mean + later.mean) / 2)
        of_kind[beside.kind].append((seconds, *ratios))
        print(f"{beside.kind}: {seconds:5.1f} s, step x {ratios[0]:.2f} (median), x {ratios[1]:.2f} (mean)")
        for what, one in (("before", out), ("beside", steps), ("after", later)):
            print(f"    {what:8}{one}")
    print(f"{'median of ' + str(ROUNDS):16}{'seconds':>10}{'step, median':>16}{'step, mean':>14}")
    for name, found in of_kind.items():
        seconds, p50, mean = (statistics.median(column) for column in zip(*found, strict=True))
        print(f"{name:16}{seconds:10.1f}{p50:16.2f}{mean:14.2f}")


@pytest.mark.bench
async def test_steps_beside_an_analysis_and_without(tmp_path, monkeypatch):
    """That of the daemon, and one as before, in turn."""
    run_dir, steps = tmp_path / "run", tmp_path / "steps"
    monkeypatch.setenv("TOLARIA_STEPS", str(steps))
    task = f"{Path(__file__).parent / 'timed_task.py'}:Timed"
    daemon = DaemonProcess(run_dir, task=task, epochs=1_000_000, sets=SETS, trainer_command=None)
    try:
        status = daemon.until(lambda status: (status.get("step") or 0) > 300, "training")
        trainer = int(status["trainer"]["pid"])
        print(f"\n{machine()}; {THREADS} torch threads")
        print(f"training on cores {os.sched_getaffinity(trainer)}, recorder on {os.sched_getaffinity(daemon.pid)}")
        phases = await phases_of(daemon, trainer)
        daemon.send(signal.SIGTERM)
        daemon.wait()
    finally:
        daemon.kill()
    # The first step of an epoch has its validation before it.
    firsts = {one.step for one in of_type(run_dir, m.StepCompleted) if one.batch == 1}
    ends = pairwise(times_of(steps.read_bytes()))
    show([(before, after) for (_, before), (step, after) in ends if step not in firsts], phases)

    assert len(of_type(run_dir, m.PruneAnalyzed)) == ROUNDS
