"""The price of a library run's control socket in a step: without it, with an idle one, and with a client that watches.

Runs of the three kinds take turns in random order in one process. A step is the time from one hook to the next: wall
time, because a thread that holds the interpreter delays the trainer. The low percentiles are those that other programs
disturb least. The last column is the processor time of the whole process for a step, with the threads of recorder and
socket. It is that of the round in which it was least. SOCKET_STEPS (3000) and SOCKET_ROUNDS (5) say how much is
measured. Nothing is judged here.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.library.live_run import started
from tolariad import Tolaria

STEPS = int(os.environ.get("SOCKET_STEPS", "3000"))
ROUNDS = int(os.environ.get("SOCKET_ROUNDS", "5"))
KINDS = ("no socket", "idle", "watched")
SETTLED = 200
PERCENTS = (5, 10, 25, 50)


def measured(run_dir, kind: str) -> tuple[list[float], float]:
    """Microseconds of wall time of each step, and the mean of the process's processor time."""
    config = {
        "torch_threads": 1,
        "batch_size": 32,
        "checkpoint_interval_epochs": 1_000,
        "learning_rate": {"base_lr": 1e-4, "warmup_epochs": 0},
        "control": {"socket": kind != "no socket"},
    }
    moments, spent, clients = [], [], []

    class Hooks:
        def on_step_end(self, model, step):
            if step == 1 and kind == "watched":
                clients.append(started("watch", run_dir, "--json", "--interval", "0.1"))
                clients[0].stdout.readline()
            if step == SETTLED:
                spent.append(time.process_time_ns())
            if step >= SETTLED:
                moments.append(time.perf_counter_ns())

    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(32 * STEPS // 2, 64, generator=generator)
    data = TensorDataset(inputs, inputs[:, :4].argmax(1))
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
    result = Tolaria({"tolaria": config}, run_dir=run_dir).train(model, data, None, 2, task=Hooks())
    cpu = (time.process_time_ns() - spent[0]) / (STEPS - SETTLED) / 1e3
    for client in clients:
        lines = client.communicate(timeout=60)[0].splitlines()
        assert lines, "the client saw nothing"
    assert result.phase == "completed"
    return [(after - before) / 1e3 for before, after in pairwise(moments)], cpu


@pytest.mark.bench
def test_the_price_of_a_control_socket_is_printed(tmp_path, seed, monkeypatch):
    """Three kinds of runs side by side."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "x"))
    draw = random.Random(seed)
    walls: dict[str, list[float]] = {kind: [] for kind in KINDS}
    cpus: dict[str, list[float]] = {kind: [] for kind in KINDS}
    measured(tmp_path / "warm-up", "watched")
    for number in range(ROUNDS):
        for kind in draw.sample(KINDS, len(KINDS)):
            steps, cpu = measured(tmp_path / f"{number}{kind[0]}", kind)
            walls[kind] += steps
            cpus[kind].append(cpu)
    print(f"\nload {os.getloadavg()[0]:.1f}, {ROUNDS} rounds of {STEPS} steps of each kind")
    print(
        f"{'us a step':12s}" + "".join(f"{f'{percent} % below':>12s}" for percent in PERCENTS) + f"{'processor':>12s}"
    )
    for kind in KINDS:
        cuts = statistics.quantiles(walls[kind], n=100)
        print(f"{kind:12s}" + "".join(f"{cuts[one - 1]:12.1f}" for one in PERCENTS) + f"{min(cpus[kind]):12.1f}")
    assert all(len(steps) == ROUNDS * (STEPS - SETTLED) for steps in walls.values())
