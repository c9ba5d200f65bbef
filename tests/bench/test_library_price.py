"""The price of a recorded step in a program, its start and its memory, each in processes of their own, in turn.

LIBRARY_PROCESSES (6) is the number of processes of each kind, LIBRARY_STEPS (2800) that of the steps in each.
Nothing is judged here.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.bench.machine import burners, machine
from tests.daemon.harness import of_type
from tolariad.core import messages as m

PROCESSES = int(os.environ.get("LIBRARY_PROCESSES", "6"))
STEPS = int(os.environ.get("LIBRARY_STEPS", "2800"))
SYNCS = ("step", "batch")
PERCENTS = (5, 25, 50)


def measured(loops: str, sync: str, folder: Path, seed: int) -> dict[str, list[float]]:
    """Sorted microseconds of each step by loop, in a new process."""
    command = [sys.executable, "-m", "tests.bench.price_apart", loops, sync, str(folder), str(STEPS), str(seed)]
    ended = subprocess.run(command, check=True, capture_output=True, timeout=300)
    return {name: sorted(steps) for name, steps in json.loads(ended.stdout).items()}


@pytest.mark.bench
@pytest.mark.parametrize("load", [0, os.cpu_count() or 1], ids=["a core is free", "no core is free"])
def test_the_price_of_a_recorded_step_in_a_program_is_printed(load, tmp_path, seed):
    """Over the bare loop in a process of its own, and in turn within one process; one process after the other."""
    alone: list[list[float]] = []
    apart: dict[str, list[list[float]]] = {sync: [] for sync in SYNCS}
    paired: dict[str, list[dict[str, list[float]]]] = {sync: [] for sync in SYNCS}
    with burners(load):
        for number in range(PROCESSES):
            alone.append(measured("bare", "", tmp_path, seed + number)["bare"])
            for sync in SYNCS:
                folder = tmp_path / f"{sync}{number}"
                apart[sync].append(measured("recorded", sync, folder, seed + number)["recorded"])
                paired[sync].append(measured("both", sync, tmp_path / f"both-{sync}{number}", seed + number))

    print(f"\n{machine()}; {load} processes that only compute; {PROCESSES} processes of {STEPS} steps each")
    (given,) = of_type(tmp_path / "step0", m.SchedulingRecorded)
    print(f"recorder on {given.daemon_cores}, program on {given.trainer_cores}: {given.why}; polls: {given.polls}")
    print(f"{'us a step':>36s}" + "".join(f"{f'{percent} %':>24s}" for percent in PERCENTS))
    show("the bare loop alone", {percent: [at(steps, percent) for steps in alone] for percent in PERCENTS})
    bare = {percent: statistics.median(at(steps, percent) for steps in alone) for percent in PERCENTS}
    for sync in SYNCS:
        over = {percent: [at(steps, percent) - bare[percent] for steps in apart[sync]] for percent in PERCENTS}
        show(f"sync: {sync}, over it", over)
        within = {
            percent: [at(one["recorded"], percent) - at(one["bare"], percent) for one in paired[sync]]
            for percent in PERCENTS
        }
        show(f"sync: {sync}, over one in turn", within)
    assert len(alone) == PROCESSES


def show(what: str, by_percent: dict[int, list[float]]) -> None:
    """Print the median of the processes, and how far apart they are."""
    cells = [f"{statistics.median(some):+8.0f} ({min(some):.0f} to {max(some):.0f})" for some in by_percent.values()]
    print(f"{what:>36s}" + "".join(f"{cell:>24s}" for cell in cells))


def at(steps: list[float], percent: int) -> float:
    """The step of which so many per cent are below."""
    return steps[len(steps) * percent // 100]


PROGRAM = """
import json, os, sys, time
begun = float(os.environ["BEGUN"])
first = []
from tolariad import Tolaria
run = Tolaria({"tolaria": {"rng_seed": 1, "torch_threads": 1}}, run_dir=sys.argv[1])
import torch
from torch import nn
from tolariad.trainer.tasks.digits import read_digits
x, y = read_digits()
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
kib = {}
def memory(pid):
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
class Hooks:
    def on_step_end(self, model, step):
        if step == 1:
            first.append(time.monotonic() - begun)
        if step == 200:
            children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
            kib.update(program=memory("self"), recorder=sum(map(memory, children)))
run.train(model, (x, y), None, 10, task=Hooks())
warm = time.monotonic()
again = Tolaria({"tolaria": {"rng_seed": 1, "torch_threads": 1}}, run_dir=sys.argv[1] + "-again")
again.train(model, (x[:640], y[:640]), None, 1)
print(json.dumps({"first step s": first[0], "a short call s": time.monotonic() - warm,
    "program MB": kib["program"] / 1024, "recorder MB": kib["recorder"] / 1024}))
"""


@pytest.mark.bench
def test_the_start_and_the_memory_of_a_program_are_printed(tmp_path):
    """From the start of the interpreter to the end of the first step; memory is the proportional share."""
    found: list[dict[str, float]] = []
    for number in range(PROCESSES):
        environment = {**os.environ, "BEGUN": str(time.monotonic())}
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / str(number))]
        ended = subprocess.run(command, env=environment, check=True, capture_output=True, timeout=120)
        found.append(json.loads(ended.stdout.splitlines()[-1]))
    print(f"\n{machine()}; median of {PROCESSES} programs")
    for name in found[0]:
        values = sorted(one[name] for one in found)
        print(f"{name:>16s} {statistics.median(values):8.2f} ({values[0]:.2f} to {values[-1]:.2f})")
    assert len(found) == PROCESSES
