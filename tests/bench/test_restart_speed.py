"""A trainer is killed: how long until it trains again, from memory and from disk, with a spare and without. 100 million
parameters with AdamW's state.

Read off the journal, by the recorder's own clock. Apart from the rest stands what memory cannot help: a new process,
its imports, and the building of the run. From disk means from page cache: the checkpoint was written a moment ago.
Nothing is judged here: the table is for whoever reads it. Goodput at a kill a minute is what the time from the kill to
the end of the steps that were run again leaves of a minute.

    python -m tests.bench.test_restart_speed [--millions 100] [--rounds 3] [--only memory] [--spare on]
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.bench.machine import machine
from tests.bench.restarted_alone import SAVED_AT
from tests.daemon.harness import DaemonProcess
from tests.recorded import events_of
from tolariad.core import messages as m

PATIENCE_S = 300.0
# The place that a trainer goes back to, and the settings under which there is no other.
MEMORY = ("memory", m.SnapshotTaken, ("snapshots.every=4", "snapshots.watch_steps=1", "checkpoint.interval_s=1000000"))
DISK = (
    "disk",
    m.CheckpointCommitted,
    ("rollback.fast_path_enabled=false", "checkpoint.interval_s=5", "checkpoint.min_gap_s=0"),
)
SPARES = ("built", "on", "off")
MINUTE_S = 60.0
# By the word that restarted_alone takes, the ways to go on without a recorder.
ALONE = {"torch": "torch.save, torch.load", "dcp": "torch.distributed.checkpoint", "lightning": "Lightning"}
KILLED_AFTER = SAVED_AT + 2
PARTS = ("death noticed", "next process told or started", "imports, run built", "state verified and restored")
LATER = "and to the first new step"


def since(found: Sequence[m.Event], kind: type[m.Event], at: int) -> list[m.Event]:
    """Those of one type that were recorded after that moment."""
    return [one for one in found if isinstance(one, kind) and one.mono > at]


def came_about(run_dir: Path, kind: type[m.Event], at: int) -> bool:
    """Wait for one that is recorded after that moment; looking costs the machine as little as may be."""
    deadline = time.monotonic() + PATIENCE_S
    while not since(events_of(run_dir), kind, at):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True


def waits(run_dir: Path, at: int) -> bool:
    """Wait for a spare that is ready, recorded after that moment."""
    deadline = time.monotonic() + PATIENCE_S
    while not any(
        getattr(one, "spare", None) is m.Spare.READY for one in since(events_of(run_dir), m.SpareChanged, at)
    ):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True


def killed(daemon: DaemonProcess, run_dir: Path, source: type[m.Event], at: int) -> tuple[dict[str, float], int, int]:
    """Kill the trainer once there is something to go back to: seconds of each part, steps run again, and the moment."""
    assert came_about(run_dir, source, at), f"no {source.__name__}"
    before = time.monotonic_ns()
    os.kill(int((run_dir / "trainer.lock").read_text()), signal.SIGKILL)
    assert came_about(run_dir, m.TrainingStarted, before), "it was not started again"
    started = since(events_of(run_dir), m.TrainingStarted, before)[0].mono
    assert came_about(run_dir, m.StepCompleted, started), "it does not train"
    found = events_of(run_dir)
    chain = [since(found, kind, before)[0] for kind in (m.TrainerDied, m.TrainerStarted, m.ExecutionContextRecorded)]
    chain += [since(found, m.TrainingStarted, before)[0], since(found, m.StepCompleted, started)[0]]
    taken = [(later - earlier) / 1e9 for earlier, later in itertools.pairwise([before, *(one.mono for one in chain)])]
    begun, first = chain[3], chain[4]
    assert isinstance(begun, m.TrainingStarted)
    assert isinstance(first, m.StepCompleted)
    assert begun.checkpoint in {one.id for one in found if isinstance(one, source)}
    return dict(zip((*PARTS, LATER), taken, strict=True)), first.step - 1 - begun.step, found[-1].mono


def measured(
    folder: Path, millions: float, rounds: int, way: tuple[str, type[m.Event], tuple[str, ...]], spare: str
) -> list[str]:
    """The lines of one way."""
    name, source, sets = way
    run_dir = folder / f"{name}-{spare}"
    run_dir.mkdir()
    daemon = DaemonProcess(
        run_dir,
        task="tests.bench.restart_task:RestartTask",
        epochs=1,
        sets=[
            f"task_options.millions={millions}",
            "batch_size=1",
            "checkpoint.throttle_mb_s=null",
            f"trainer.spare={spare}",
            *sets,
        ],
        trainer_command=None,
    )
    rows, again, at = [], [], 0
    try:
        daemon.until(lambda status: (status.get("step") or 0) >= 1, "the first step")
        for _ in range(rounds):
            assert spare == "off" or waits(run_dir, at), "no spare"
            row, steps, at = killed(daemon, run_dir, source, at)
            rows.append(row)
            again.append(steps)
    finally:
        daemon.kill()
    parts = {part: statistics.median(row[part] for row in rows) for part in PARTS}
    lines = [f"  {part:34}{seconds:8.2f} s" for part, seconds in parts.items()]
    whole = statistics.median(sum(row[part] for part in PARTS) for row in rows)
    apart = statistics.median(sum(row[part] for part in PARTS) - row[PARTS[2]] for row in rows)
    later = statistics.median(row[LATER] for row in rows)
    lines += [f"  {'killed to training again':34}{whole:8.2f} s", f"  {'the same, imports apart':34}{apart:8.2f} s"]
    lines += [f"  {LATER:34}{later:8.2f} s ({', '.join(map(str, again))} run again before it)"]
    goodput = 100 * (1 - (whole + later) / MINUTE_S)
    lines.append(f"  {'goodput at a kill a minute':34}{goodput:8.1f} %")
    return [f"from {name}, spare {spare} ({len(rows)} kills)", *lines]


def killed_alone(way: str, folder: Path, millions: float) -> tuple[float, float]:
    """Kill a program without a recorder and start it again: seconds until it trains, and from there to a new step."""
    command = [sys.executable, "-m", "tests.bench.restarted_alone", way, str(folder), str(millions)]
    moments = [{}, {}]
    killed_ns = 0
    for life in moments:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                # Lightning prints lines of its own.
                if (words := line.split()) and words[0] in ("trains", "saved", "step"):
                    life[" ".join(words[:-1])] = int(words[-1])
                if f"step {KILLED_AFTER + (life is moments[1])}" in life:
                    break
            if life is moments[0]:
                killed_ns = time.monotonic_ns()
            process.kill()
    again = moments[1]
    assert f"step {SAVED_AT + 1}" in again, f"{way} did not go on from its checkpoint"
    assert f"step {SAVED_AT}" not in again, f"{way} did not go on from its checkpoint"
    trains, first = again["trains"], again[f"step {KILLED_AFTER + 1}"]
    return (trains - killed_ns) / 1e9, (first - trains) / 1e9


def alone(millions: float, rounds: int, folder: Path) -> list[str]:
    """A line for each way to write a checkpoint oneself, restarted at once by whoever sees the death."""
    lines = [f"a program of one's own, from disk, {KILLED_AFTER - SAVED_AT} steps run again ({rounds} kills)"]
    for way, name in ALONE.items():
        rows = []
        for number in range(rounds):
            own = folder / f"{way}-{number}"
            own.mkdir()
            rows.append(killed_alone(way, own, millions))
            shutil.rmtree(own)
        trains, later = (statistics.median(row[at] for row in rows) for at in (0, 1))
        goodput = 100 * (1 - (trains + later) / MINUTE_S)
        lines.append(f"  {name:34}{trains:8.2f} s, {later:.2f} s to the first new step, goodput {goodput:.1f} %")
    return lines


def run(
    millions: float,
    rounds: int,
    folder: Path | None = None,
    ways: Sequence[tuple[str, type[m.Event], tuple[str, ...]]] = (MEMORY, DISK),
    spares: Sequence[str] = SPARES,
    *,
    others: bool = True,
) -> str:
    """Measure in a folder of its own, on the disk of the working tree, and give the table."""
    own = Path(tempfile.mkdtemp(prefix="bench-", dir=folder or Path.cwd()))
    try:
        tables = [measured(own, millions, rounds, way, spare) for way in ways for spare in spares]
        if others:
            tables.append(alone(millions, rounds, own))
    finally:
        shutil.rmtree(own)
    return "\n".join(
        [machine(), f"{millions:g} M parameters with AdamW's state", *(line for one in tables for line in one)]
    )


@pytest.mark.bench
def test_a_killed_trainer_trains_again_from_memory_and_from_disk():
    """The table, with both ways; each started from what it was to start from."""
    text = run(float(os.environ.get("TOLARIA_BENCH_MILLIONS", "100")), 3)
    print(f"\n{text}")
    assert text.count("imports apart") == len(SPARES) * 2


def main() -> None:
    """By hand."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millions", type=float, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("memory", "disk", "others"), help="measure one place to go back to")
    parser.add_argument("--spare", choices=SPARES, help="measure one way of starting the next trainer")
    given = parser.parse_args()
    # A benchmark that is ended before its time ends the run that it began, too.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    ways = [way for way in (MEMORY, DISK) if given.only in (None, way[0])]
    print(
        run(
            given.millions,
            given.rounds,
            ways=ways,
            spares=[given.spare] if given.spare else SPARES,
            others=given.only in (None, "others"),
        )
    )


if __name__ == "__main__":
    main()
