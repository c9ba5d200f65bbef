"""`on_death: skip_batch` with a trainer that really dies: the deadly batch leaves no trace in the run."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from journal import Reader
from tests.campaign.campaign import living_line, living_metrics
from tests.campaign.forks import Template
from tests.campaign.killing import BATCHES, DEADLY, DEADLY_EPOCH, SICK
from tests.recorded import events_of, of, sound
from tolariad.cli.tolaria import main
from tolariad.control.client import Client, ControlError, NotReachable
from tolariad.core import messages as m
from tolariad.core.state.replay import replay_records
from tolariad.core.state.run_state import RunState

EPOCHS, LIMIT_S = 3, 90.0
CONFIG = f"""\
tolaria:
  task: {Path(__file__).with_name("killing.py")}:Killing
  rng_seed: 5
  epochs: {EPOCHS}
  torch_threads: 1
  on_death: skip_batch
  journal: {{segment_bytes: 65536}}
  learning_rate: {{base_lr: 0.01, warmup_epochs: 1}}
"""


class Run:
    """One run in its own folder."""

    def __init__(self, folder: Path, template: Template, *, shells: int, waits: bool = False) -> None:
        self.folder, self.run_dir, self.brake = folder, folder / "run", folder / "brake"
        folder.mkdir()
        if waits:
            self.brake.touch()
        (folder / "config.yaml").write_text(CONFIG)
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
        arguments = ["run", str(folder / "config.yaml"), "--dir", str(self.run_dir)]
        with (folder / "daemon.log").open("ab") as log:
            self.daemon = template.start(
                arguments, environment=environment, folder=folder, log=log.fileno(), shells=shells
            )

    def until(self, step: int) -> None:
        """Return whether the status shows this many durable steps."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            try:
                with Client(self.run_dir / "control.sock") as client:
                    status = client.call("io.esper.tolaria.Status")["status"]
            except (NotReachable, ControlError):
                status = {}
            if (status.get("step") or 0) >= step:
                return
            time.sleep(0.01)
        self.daemon.kill()
        raise AssertionError(f"step {step} never came:\n{self.log}")

    @property
    def log(self) -> str:
        return (self.folder / "daemon.log").read_text(errors="replace")[-6000:]

    def look(self) -> tuple[dict[str, str], list[bytes], list[dict[str, float]], list]:
        """After the end, return the bits of the last checkpoint, every step of the lineage, metrics and events."""
        try:
            code = self.daemon.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.daemon.kill()
            raise AssertionError(f"the run does not end:\n{self.log}") from None
        assert code == 0, self.log
        events = events_of(self.run_dir)
        state = replay_records(RunState(), Reader(self.run_dir / "journal").records(), strict=True).state
        last = next(one for one in events if isinstance(one, m.RunCompleted)).checkpoint
        committed = next(one for one in events if isinstance(one, m.CheckpointCommitted) and one.id == last)
        pieces = {piece.name: piece.blake3 for piece in committed.pieces}
        return pieces, living_line(events, state), living_metrics(events, state), events


def passed_over(events: list) -> list[tuple[int, int, m.SkipReason]]:
    return [(one.epoch, one.batch, one.reason) for one in of(events, m.StepSkipped)]


def test_a_run_whose_trainer_died_of_batches_ends_as_one_that_never_looked_at_them(tmp_path, template, monkeypatch):
    """Two batches in a row: each kills three trainers and is then skipped. The bits are those of a run from the same
    seed that had both in quarantine from the beginning. This holds although losses draw from Python's and NumPy's
    generators. Each trainer re-runs a batch that was skipped after its draws.
    """
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    died = Run(tmp_path / "died", template, shells=7)
    warned = Run(tmp_path / "warned", template, shells=1, waits=True)
    warned.until(BATCHES)
    batches = f"{DEADLY_EPOCH}:{DEADLY[0]}-{DEADLY[-1]}"
    with pytest.raises(SystemExit) as ended:
        main(["quarantine", "add", "--batch", batches, "--dir", str(warned.run_dir), "--reason", "they kill"])
    assert ended.value.code == 0
    warned.brake.unlink()
    pieces, line, metrics, events = died.look()
    warned_pieces, warned_line, warned_metrics, warned_events = warned.look()

    deaths = of(events, m.TrainerDied)
    added = of(events, m.QuarantineAdded)
    assert [(one.signal, one.step) for one in deaths] == [("SIGKILL", BATCHES + DEADLY[0] - 2)] * 6
    assert [(one.batches, one.deaths) for one in added] == [(m.Batches(DEADLY_EPOCH, n, n), 3) for n in DEADLY]
    sound(died.run_dir)
    assert sum(one.skipped for one in of(events, m.RerunFinished)) >= len(deaths)
    expected = [(DEADLY_EPOCH, number, m.SkipReason.QUARANTINED) for number in DEADLY]
    expected = [(2, SICK, m.SkipReason.NON_FINITE), *expected, (3, SICK, m.SkipReason.NON_FINITE)]
    assert passed_over(events) == passed_over(warned_events) == expected
    assert of(warned_events, m.TrainerDied) == []
    assert {"model", "optimizer", "state"} <= {name[: name.find("-")] for name in pieces}
    assert pieces == warned_pieces
    assert (line, metrics) == (warned_line, warned_metrics)
    assert len(metrics) == EPOCHS
