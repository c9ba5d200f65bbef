"""The price of recording in a training step: a real daemon, a real trainer, and other loops in turn in one process.

PRICE_PAIRS (21), PRICE_PROCESSES (9) and PRICE_STEPS (of a block; 280) make it shorter. TOLARIA_SEED draws the turns.
Nothing is judged here.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.bench import price_loops, price_table
from tests.daemon.harness import DaemonProcess, of_type
from tolariad.core import messages as m

PAIRS = int(os.environ.get("PRICE_PAIRS", "21"))
PROCESSES = int(os.environ.get("PRICE_PROCESSES", "9"))
BURNERS = 2
BARES = ("bare", "bare 2", "bare 3")


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One table: a model, how its steps are recorded, what else the machine does, which loops stand beside."""

    name: str
    model: str = "mlp"
    batch_size: int = 64
    steps: int = int(os.environ.get("PRICE_STEPS", "280"))
    sync: str = "step"
    threads: int = 1
    burners: int = 0
    loops: tuple[str, ...] = ("bare",)
    # Two identical loops differ by up to 10 % within one process, because of where their memory lies. A comparison to
    # 40 us needs several processes of each.
    processes: int = 1


SCENARIOS = (
    Scenario(name="digits MLP, every step durable", loops=(*BARES, "loader"), processes=PROCESSES),
    Scenario(name="beside other trainers", loops=(*BARES, "writes", "fabric", "lightning")),
    Scenario(name="digits MLP, sync: batch", sync="batch"),
    Scenario(name="a step of 0.4 ms", model="tiny"),
    Scenario(
        name="a step of 20 ms, small activations",
        model="deep",
        batch_size=160,
        # A block is an epoch, at whose end a snapshot of 16 MB is taken. Two longer ones of other loops would look like
        # a hang.
        steps=140,
        loops=BARES[:2],
        processes=max(1, PROCESSES // 2),
    ),
    Scenario(name="two torch threads", threads=2),
    Scenario(name="two CPU burners beside", burners=BURNERS),
)


@pytest.fixture
def run_folder() -> Iterator[Path]:
    """On the disk of the working tree: a temporary folder may lie in memory."""
    made = Path(tempfile.mkdtemp(prefix="bench-", dir=Path.cwd()))
    yield made
    shutil.rmtree(made)


@contextlib.contextmanager
def burning(count: int) -> Iterator[None]:
    """So many processes that only compute."""
    burners = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for one in burners:
            one.kill()
            one.wait()


@pytest.mark.bench
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_price_of_a_recorded_step_is_printed(scenario, run_folder, seed):
    """Paired blocks in random turn: wall and the trainer thread's own time over the bare loop, with gate and daemon."""
    left_out = {name: why for name in scenario.loops if (why := price_loops.missing(name))}
    loops = [name for name in scenario.loops if name not in left_out]
    rounds, medians = [], []
    for number in range(scenario.processes):
        folder = run_folder / str(number)
        folder.mkdir()
        with burning(scenario.burners):
            found = measured(scenario, folder, loops, seed + number)
        rounds += found
        medians.append(price_table.paired(found, "tolariad", "bare", "wall_us").median)
    (scheduling,) = of_type(folder, m.SchedulingRecorded)

    print("\n" + "\n".join([*head(scenario, scheduling), *price_table.lines(rounds)]))
    if scenario.processes > 1:
        each = ", ".join(f"{median:+.0f}" for median in sorted(medians))
        print(f"tolariad over bare, the median of each process: {each}; of these {statistics.median(medians):+.1f} us")
    for name, why in left_out.items():
        print(f"{name:12} skipped: {why}")
    if "loader" in loops:
        headline = price_table.paired(rounds, "tolariad", "loader", "wall_us")
        print(f"tolariad's index loader, every step durable, over the bare loop with a DataLoader: {headline} us")
    assert len(rounds) == PAIRS * scenario.processes
    assert all(one["tolariad"]["steps"] == scenario.steps for one in rounds)


def measured(
    scenario: Scenario, folder: Path, loops: list[str], seed: int, *more: str, pairs: int = PAIRS
) -> list[price_table.Round]:
    """Run the scenario; its rounds without the first, in which everything is cold. `more`: further settings."""
    trainer = [*(sys.executable, "-m", "tests.bench.price_trainer"), *("--run", str(folder))]
    daemon = DaemonProcess(
        folder,
        task="tests.bench.price_task:PriceTask",
        epochs=pairs + 1,
        sets=[*(f"{key}={value}" for key, value in options(scenario).items()), *more],
        trainer_command=[*trainer, "--config-json", str(folder / "config.resolved.json")],
        environ={"PRICE_LOOPS": ",".join(loops), "PRICE_SEED": str(seed)},
    )
    daemon.process.communicate()
    log = folder / "logs" / "trainer.log"
    assert daemon.process.returncode == 0, log.read_text() if log.exists() else "the daemon did not start"
    return json.loads((folder / "price.json").read_text())[1:]


def options(scenario: Scenario) -> dict[str, object]:
    """The configuration of a priced run."""
    return {
        "journal.segment_bytes": 100_000_000,
        "journal.sync": scenario.sync,
        "torch_threads": scenario.threads,
        "batch_size": scenario.batch_size,
        # So low that nothing is learnt by heart. Otherwise gradients vanish and moments become denormal numbers. A step
        # then takes up to half as long again, in each loop at a time of its own.
        "learning_rate.base_lr": 1e-5,
        "learning_rate.warmup_epochs": 0,
        # None within the run: what a checkpoint costs is another table.
        "checkpoint_interval_epochs": 1_000_000,
        "checkpoint.interval_s": 1_000_000,
        "task_options.model": scenario.model,
        "task_options.steps": scenario.steps,
    }


def head(scenario: Scenario, given: m.SchedulingRecorded) -> list[str]:
    """Describe the machine of the figures."""
    disk = "unknown" if given.disk_core < 0 else str(given.disk_core)
    pinned = f"daemon on {given.daemon_cores}, trainer on {given.trainer_cores}" if given.daemon_cores else given.why
    rounds = f"{scenario.processes} x {PAIRS} rounds of {scenario.steps} steps"
    machine = f"{platform.machine()}, cores {given.cores}, load {os.getloadavg()[0]:.1f}"
    return [
        f"== {scenario.name}: {rounds}, {given.threads} torch threads",
        f"{machine}, disk interrupts core {disk}; {pinned}",
        f"recorder: {given.scheduler}, {'polls' if given.polls else 'is woken'}; refused: {given.refused or 'nothing'}",
    ]
