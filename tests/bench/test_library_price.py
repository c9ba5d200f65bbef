"""The start of a program that records itself, and its memory, in processes of their own.

LIBRARY_PROCESSES (6) is the number of processes. Nothing is judged here. `test_step_apart.py` has the price of a step.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time

import pytest

from tests.bench.machine import machine

PROCESSES = int(os.environ.get("LIBRARY_PROCESSES", "6"))

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
