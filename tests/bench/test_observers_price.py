"""The price of those that look at a run: a bus, a follower to TensorBoard, a scrape each second and a watch, or nobody.

OBSERVED_PAIRS (5) is the number of blocks in each process, OBSERVED_PROCESSES (2) that of processes of each kind, which
take turns; OBSERVED_KINDS (5) takes the first kinds only. A step has 20 ms. Nothing is judged here. Without
redis-server the bus is an address where nobody answers; without textual the watch prints a line a second.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

import pytest

from tests.bench import price_table
from tests.bench.machine import machine
from tests.bench.observers import Watch, beside, bus, scraped
from tests.bench.test_step_price import SCENARIOS, measured, run_folder
from tests.core.simulate import World
from tolariad.core import messages as m
from tolariad.core.calc.settings.model import Settings
from tolariad.core.calc.settings.receivers import Notify, Telemetry
from tolariad.daemon.receivers import Receivers
from tolariad.kernel import Published

PAIRS = int(os.environ.get("OBSERVED_PAIRS", "5"))
PROCESSES = int(os.environ.get("OBSERVED_PROCESSES", "2"))
COUNT = int(os.environ.get("OBSERVED_KINDS", "5"))
TURNS = 20_000
LONG = next(one for one in SCENARIOS if one.model == "deep")
# The state of the bus beside the other observers, by the name of the row.
KINDS = {"nobody": "", "all": "works"} | {f"all, the bus {state}": state for state in ("stopped", "full", "dead")}
__all__ = ["run_folder"]


@pytest.mark.bench
def test_the_price_of_observers_is_printed(run_folder, tmp_path, seed):
    """Paired blocks, each recorded one beside a bare one, in processes with and without observers in turn."""
    rounds: dict[str, list[price_table.Round]] = {kind: [] for kind in [*KINDS][:COUNT]}
    for number in range(PROCESSES):
        for kind in rounds:
            folder = run_folder / f"{number}-{KINDS[kind]}"
            folder.mkdir()
            rounds[kind] += observed(kind, folder, tmp_path / folder.name, seed + number)
    print(f"\n== observers: {PROCESSES} x {PAIRS} blocks of {LONG.steps} steps; {machine()}")
    print(f"{'us a step':24}{'bare':>8}{'recorded':>10}  {'over bare':26}{'gate p50':>9}{'p99':>7}{'daemon CPU':>12}")
    for kind, found in rounds.items():
        bare, wall = (statistics.median(one[loop]["wall_us"] for one in found) for loop in ("bare", "tolariad"))
        over = price_table.paired(found, "tolariad", "bare", "wall_us")
        _, p50, p99 = price_table.waits(found)
        daemon = statistics.median(one["tolariad"]["daemon_us"] for one in found)
        print(f"{kind:24}{bare:>8.0f}{wall:>10.0f}  {over!s:26}{p50:>9.0f}{p99:>7.0f}{daemon:>12.0f}")
    counts = {kind: len(found) for kind, found in rounds.items()}
    # On a crowded machine a block may look like a hang. The trainer that follows has measured fewer.
    print(f"blocks: {counts}")
    assert all(counts.values())


def observed(kind: str, folder: Path, aside: Path, seed: int) -> list[price_table.Round]:
    """Return the blocks of one process."""
    if kind == "nobody":
        return measured(LONG, folder, ["bare"], seed, pairs=PAIRS)
    aside.mkdir(parents=True)
    page = folder / "metrics.sock"
    watch = Watch(folder, page)
    with bus(aside, KINDS[kind]) as url, scraped(page), beside(watch.show):
        more = (f"telemetry.bus_url={url}", "follow=[{to: tensorboard}]")
        return measured(LONG, folder, ["bare"], seed, *more, pairs=PAIRS)


@pytest.mark.bench
async def test_the_price_of_a_turn_is_printed(tmp_path):
    """Microseconds of the recorder's thread to queue a step, for each set of receivers; nothing is sent yet."""
    world = World(1)
    world.run(20)
    step = m.StepCompleted(step=1, epoch=1, batch=1, loss=1.0, grad_norm=1.0, lr=0.1, rates=1, wall=1)
    turn = Published(world.state, ((9, step),), (), None)
    kinds = {
        "none": Settings(),
        "notify": Settings(notify=Notify(command="exit 0")),
        "bus": Settings(telemetry=Telemetry(bus_url="unix:///nowhere")),
        "notify, bus, traces": Settings(
            notify=Notify(command="exit 0"),
            telemetry=Telemetry(bus_url="unix:///nowhere", otlp_endpoint="http://127.0.0.1:1"),
        ),
    }
    print(f"\n{'recorder, us a step':24}{'median':>8}{'p99':>8}   (the queue is full from message 10 000 on)")
    for kind, settings in kinds.items():
        receivers = Receivers(tmp_path, bytes(16))
        receivers.configure(settings)
        took = []
        for _ in range(TURNS):
            begun = time.perf_counter_ns()
            receivers.publish(turn)
            took.append((time.perf_counter_ns() - begun) / 1e3)
        took.sort()
        print(f"{kind:24}{took[TURNS // 2]:>8.2f}{took[TURNS * 99 // 100]:>8.2f}")
        dropped = sum(one.dropped for one in receivers.status())
        assert dropped == (TURNS - 10_000 if "bus" in kind else 0)
