"""A run that dies several times has the metrics of each step once, and the same as one that never died."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.daemon.harness import SETS, ForkedDaemon, of_type
from tolariad.cli.tolaria import main
from tolariad.core import messages as m
from tolariad.forensics.numbers import epochs_of

TASK = f"{Path(__file__).with_name('measuring_task.py')}:Measuring"
SETTINGS = [
    *SETS,
    "rng_seed=5",
    "torch_threads=1",
    "batch_size=8",
    "checkpoint_interval_epochs=1",
    "checkpoint.min_gap_s=0",
]
# A step within an epoch, and a step that is made again.
POINTS = ("step:7", "rerun:4")


def started(run_dir: Path, environ: dict[str, str] | None = None) -> ForkedDaemon:
    run_dir.mkdir(exist_ok=True)
    return ForkedDaemon(run_dir, environ=environ, task=TASK, epochs=3, sets=SETTINGS, trainer_command=None)


def printed(run_dir: Path, capsys) -> list[dict[str, str]]:
    """Return the output of `tolaria metrics --csv`, without the times."""
    with pytest.raises(SystemExit) as ended:
        main(["metrics", str(run_dir), "--csv"])
    assert ended.value.code == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    return [{name: value for name, value in row.items() if name != "time"} for row in rows]


def test_a_run_that_is_killed_has_each_steps_metrics_once(tmp_path, capsys):
    """The trainer dies twice, within an epoch and within a re-run, and the daemon once: equal in every bit."""
    tokens = [tmp_path / f"token-{n}" for n in range(len(POINTS))]
    for token in tokens:
        token.touch()
    environ = {"TOLARIA_FAILPOINT": ",".join(f"{point}@{token}" for point, token in zip(POINTS, tokens, strict=True))}
    calm = started(tmp_path / "calm")
    run_dir = tmp_path / "killed"
    daemon = started(run_dir, environ)
    daemon.until(lambda status: (status["step"] or 0) >= 12, "step 12")
    daemon.kill()
    again = started(run_dir, environ)
    assert again.wait() == 0, again.stderr
    assert calm.wait() == 0, calm.stderr

    assert not any(token.exists() for token in tokens)
    assert len(of_type(run_dir, m.TrainerDied)) >= len(POINTS)
    assert of_type(run_dir, m.RerunFinished)
    assert [one.step for one in of_type(run_dir, m.StepCompleted)] == list(range(1, 31))
    names = [name for one in of_type(run_dir, m.MetricsNamed) for name in one.names]
    assert names == ["acc", "lr", "rare", "late"]
    rows = printed(run_dir, capsys)
    assert rows == printed(tmp_path / "calm", capsys)
    assert [row["metric/lr"] for row in rows] == [f"{float(step)}" for step in range(1, 31)]
    assert [row["step"] for row in rows if row["rare"]] == ["3", "9", "15", "21", "27"]
    assert [row["step"] for row in rows if row["late"]] == list(map(str, range(14, 31)))
    ended = [one.metrics for one in of_type(run_dir, m.EpochFinished)]
    assert ended == [one.metrics for one in of_type(tmp_path / "calm", m.EpochFinished)]
    assert [one["lr"] for one in ended] == [5.5, 15.5, 25.5]
    assert [one.by_name["metric/lr"] for one in epochs_of(run_dir / "journal")] == [5.5, 15.5, 25.5]
