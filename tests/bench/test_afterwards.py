"""What it costs to take a long run apart: `diff`, `state --at` and `report` of a million steps, as whole processes.

Nothing is asserted but that the answers are right. `TOLARIA_BENCH_STEPS` makes the run shorter.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time

import pytest

from journal import FrameKind, Journal, Tabulation
from tolariad.core import messages as m
from tolariad.core.calc.steps.many import many_of
from tolariad.core.calc.steps.table import METRIC, STEP_COLUMNS, step_row
from tolariad.core.messages.vocabulary import encode_event
from tolariad.core.state.run_state import RunState, apply, apply_steps, capture

pytestmark = pytest.mark.bench

STEPS = int(os.environ.get("TOLARIA_BENCH_STEPS", "1000000"))
_COMMAND = [sys.executable, "-c", "from tolariad.cli.tolaria import main; main()"]
_NAMES = tuple(f"m{number}" for number in range(9))
_A_FRAME = 256
_A_CAPTURE = 4096


def _written(folder, differs_at=0):
    """Write a run of so many steps with nine metrics, a capture every 4096 events."""
    state = RunState()
    with Journal.open(folder / "journal", tabulation=Tabulation(STEP_COLUMNS, step_row, METRIC)) as journal:
        journal.begin(
            run_id=bytes(16), context_hash=bytes(32), capture=lambda: capture(state), wall_ns=1, boot_id=bytes(16)
        )
        state = apply(state, named := m.MetricsNamed(names=_NAMES))
        journal.commit([encode_event(named)], epoch=0, step=0, wall_ns=1, mono_ns=1)
        batch: list[m.StepCompleted] = []
        for step in range(1, STEPS + 1):
            loss = 1.0 / step + 0.01 * math.sin(step) + (step == differs_at)
            metrics = tuple(loss * number for number in range(9))
            at = {"wall": step * 10**7, "mono": step * 10**7, "step": step, "epoch": 1 + step // 10_000, "batch": 1}
            batch.append(m.StepCompleted(**at, loss=loss, grad_norm=1.0, lr=0.1, rates=1, metrics=metrics))
            if len(batch) == _A_FRAME or step == STEPS:
                after = apply_steps(state, many_of(batch))
                raw = [encode_event(event) for event in batch]
                journal.commit(raw, epoch=at["epoch"], step=step, wall_ns=at["wall"], mono_ns=at["mono"])
                if after.seq // _A_CAPTURE > state.seq // _A_CAPTURE:
                    journal.mark(FrameKind.CAPTURE, capture(after), wall_ns=at["wall"], mono_ns=at["mono"])
                state, batch = after, []


def _timed(*arguments):
    """Run a command; return its wall clock and what it printed."""
    before = time.perf_counter()
    done = subprocess.run([*_COMMAND, *map(str, arguments)], stdout=subprocess.PIPE, text=True, check=False)
    return time.perf_counter() - before, done.stdout


def test_a_run_of_a_million_steps_is_taken_apart(tmp_path):
    """Two such runs differ at one step near the end."""
    at = STEPS * 7 // 10
    _written(tmp_path / "a")
    _written(tmp_path / "b", differs_at=at)
    events, _ = _timed("events", tmp_path / "a", "-n", "1")
    print(f"\n{STEPS} steps; `events -n 1` as a whole process takes {events:.2f} s")
    seconds, said = _timed("diff", tmp_path / "a", tmp_path / "b", "--json")
    found = json.loads(said)
    print(f"diff RUN_A RUN_B: {seconds:.2f} s, {seconds / events:.1f} x")
    assert (found["verdict"], found["first"]["place"][-1]) == ("value", at)
    seconds, said = _timed("state", tmp_path / "a", "--at", f"step:{at}", "--json")
    print(f"state --at: {seconds:.2f} s, {seconds / events:.1f} x")
    assert json.loads(said)["progress"]["step"] == at
    seconds, said = _timed("report", tmp_path / "a", "-o", tmp_path / "a.html", "--json")
    size = json.loads(said)["size"] / 1e6
    print(f"report of 12 series: {seconds:.2f} s, {seconds / events:.1f} x; the page has {size:.1f} MB")
