"""The price of VALIDATION_ONLY for a run: time on a core of the trainer and of the daemon, with pruning and without.

Two real daemons train the digits CNN with steps of some 20 ms, in turn: one without pruning, one whose checkpoints are
all analysed. The times are those of the threads, so other programs on the cores count little. The analysis itself is a
process of its own, and has its own line. Printed; asserted is only that both trained and that checkpoints were
analysed. The counted form is in tests/trainer/pruning/test_overhead.py.

    python -m pytest -m bench -s tests/bench/test_validation_only_price.py
"""

from __future__ import annotations

import os
import signal
import statistics
from pathlib import Path

import pytest

from tests.bench.machine import machine
from tests.daemon.harness import DaemonProcess, of_type
from tolariad.core import messages as m

ROUNDS = int(os.environ.get("TOLARIA_BENCH_ROUNDS", "3"))
STEPS = int(os.environ.get("TOLARIA_BENCH_STEPS", "300"))
FIRST = 60
SETS = ["task_options.model=cnn", "batch_size=512", "torch_threads=1", "checkpoint.min_gap_s=0"]
ANALYSED = ["prune.enabled=true", "prune.analysis_priority=normal"]
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


def thread_s(pid: int, tid: int) -> float:
    """Return the seconds that a thread has had a core, to the nanosecond."""
    return int(Path(f"/proc/{pid}/task/{tid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9


def process_s(pid: int) -> float:
    """Return the seconds that all living threads of a process have had a core."""
    return sum(thread_s(pid, int(one.name)) for one in Path(f"/proc/{pid}/task").iterdir())


def children_s(pid: int) -> float:
    """Return the seconds of a process's ended children."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) * _TICK_S


class Spent:
    """Seconds on a core of a daemon's run, from one step to another."""

    def __init__(self, run_dir: Path, *sets: str) -> None:
        self.daemon = DaemonProcess(run_dir, task="digits", epochs=1_000_000, sets=[*SETS, *sets], trainer_command=None)
        try:
            first = self._at(FIRST)
            last = self._at(first[0] + STEPS)
            steps = last[0] - first[0]
            self.loop, self.trainer, self.recorder, self.analyses = (
                (after - before) / steps for before, after in zip(first[1:], last[1:], strict=True)
            )
            self.daemon.send(signal.SIGTERM)
            self.daemon.wait()
        finally:
            self.daemon.kill()
        self.cycles = len(of_type(run_dir, m.PruneAnalyzed))

    def _at(self, step: int) -> tuple[int, float, float, float, float]:
        status = self.daemon.until(lambda status: (status.get("step") or 0) >= step, f"step {step}")
        trainer, recorder = int(status["trainer"]["pid"]), self.daemon.pid
        return (
            status["step"],
            thread_s(trainer, trainer),
            process_s(trainer),
            process_s(recorder),
            children_s(recorder),
        )


@pytest.mark.bench
def test_validation_only_beside_no_pruning(tmp_path):
    """Medians of interleaved runs, in microseconds a step; the difference is what pruning costs."""
    print(f"\n{machine()}")
    kinds: tuple[list[Spent], list[Spent]] = [], []
    for number in range(ROUNDS):
        kinds[0].append(Spent(tmp_path / f"without{number}"))
        kinds[1].append(Spent(tmp_path / f"with{number}", *ANALYSED))
    print(f"{'':24s}{'without':>10s}{'with':>10s}{'difference':>12s}")
    for name in ("loop", "trainer", "recorder", "analyses"):
        without, with_it = (1e6 * statistics.median(getattr(one, name) for one in kind) for kind in kinds)
        print(f"{name:18s}us/step{without:10.0f}{with_it:10.0f}{with_it - without:12.1f}")
    print(f"analyses in the second kind: {[one.cycles for one in kinds[1]]}")

    assert all(one.cycles > 0 for one in kinds[1])
    assert all(one.cycles == 0 for one in kinds[0])
