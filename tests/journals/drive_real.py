"""Real runs, daemon and torch, that between them record nearly every type of event: `make_real` keeps their journals.

Run by `python -m tests.journals.make_real`; the ordinary suite does not collect this file. Each function drives one run
to its end, however it is disturbed, and leaves its journal in its folder. A new type of event gets a few lines in the
run that fits it, or a run of its own. The last line of a run names its purpose.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from journal import Reader, plan_repair, repair
from tests.daemon.harness import CallFailed, DaemonProcess, of_type
from tests.daemon.test_gap import STEP
from tests.journals.odd_task import Anew, Hardest
from tests.library.small import data
from tests.trainer.tasks import tampering
from tests.waiting import within
from tolariad import Tolaria
from tolariad.core import messages as m
from tolariad.core.messages.vocabulary import decode_event
from tolariad.forensics.gap import gap_event
from tolariad.trainer.health import memory
from tolariad.trainer.lr import controller_of
from tolariad.trainer.optim import OptimizerRebuildCoordinator

ODD = Path(__file__).with_name("odd_task.py")
SEGMENT = "journal.segment_bytes=65536"
FAST = ["detect.act=false", "snapshots.every=5", "snapshots.watch_steps=5", SEGMENT, "torch_threads=1"]
CONFIG = """tolaria:
  task: digits
  epochs: 100000
  rng_seed: 5
  torch_threads: 1
  checkpoint_storage_quota_gb: {quota}
  checkpoint: {{keep_last: {keep}, min_gap_s: 0}}
  snapshots: {{every: 5, watch_steps: 5}}
  detect: {{act: false}}
  journal: {{segment_bytes: 65536}}
"""


def kinds(run_dir: Path) -> set[str]:
    """The types of events in its journal."""
    return {type(decode_event(entry.event)).__name__ for entry in Reader(run_dir / "journal")}


def step_beyond(daemon: DaemonProcess, more: int) -> None:
    """Let it train."""
    status = daemon.until(lambda status: status["phase"] == "running" and status.get("step") is not None, "training")
    daemon.until(lambda now: now["step"] >= status["step"] + more, f"{more} more steps")


def trainer_of(daemon: DaemonProcess) -> int:
    """The trainer's process."""
    return int(daemon.until(lambda status: status["trainer"]["alive"], "a trainer")["trainer"]["pid"])


def holds(run_dir: Path, *wanted: str) -> None:
    """The run was worth it."""
    assert set(wanted) <= kinds(run_dir), set(wanted) - kinds(run_dir)


def test_an_operators_day(tmp_path):
    """Every order, a reload, a full quota, deaths of both processes, and a torn end of the journal."""
    run_dir, file = tmp_path / "run", tmp_path / "run.yaml"
    run_dir.mkdir()
    file.write_text(CONFIG.format(quota=0.00001, keep=1))
    daemon = DaemonProcess(run_dir, config=str(file), trainer_command=None, sets=None)
    step_beyond(daemon, 40)
    daemon.call("Note", text="the day begins")
    with contextlib.suppress(CallFailed):
        daemon.call("Resume", id="nothing to resume")
    daemon.call("Checkpoint")
    daemon.call("LrSet", group=of_type(run_dir, m.LrGroupsRegistered)[0].groups[0].name, value=0.001)
    daemon.call("QuarantineAdd", batches={"epoch": 100_000, "first": 1, "last": 2}, reason="never seen")
    (added,) = of_type(run_dir, m.QuarantineAdded)
    daemon.call("QuarantineRemove", name=added.name)
    daemon.call("Emergency", level="minor", reason="a look")
    daemon.call("Pause")
    daemon.until(lambda status: status["phase"] == "paused", "the pause")
    file.write_text(CONFIG.format(quota=1, keep=2))
    daemon.send(signal.SIGHUP)
    assert within(10, lambda: "StorageRelieved" in kinds(run_dir))
    daemon.call("Resume")
    step_beyond(daemon, 60)
    for tier in ("fast", "full"):
        daemon.call("Rollback", tier=tier, reason=f"try the {tier} tier")
        step_beyond(daemon, 20)
    os.kill(trainer_of(daemon), signal.SIGKILL)
    step_beyond(daemon, 20)
    daemon.call("Emergency", level="critical", reason="stand")
    daemon.until(lambda status: status["phase"] == "frozen" and not status["trainer"]["alive"], "the freeze")
    daemon.call("Resume")
    step_beyond(daemon, 5)
    daemon.kill()
    torn(run_dir)
    daemon = DaemonProcess(run_dir, config=str(file), trainer_command=None, sets=None)
    step_beyond(daemon, 5)
    os.kill(trainer_of(daemon), signal.SIGSTOP)
    daemon.send(signal.SIGTERM)
    assert within(10, lambda: "StopRequested" in kinds(run_dir))
    daemon.kill()
    # A trainer that imports beside other load is silent for seconds, too.
    daemon = DaemonProcess(run_dir, config=str(file), trainer_command=None, sets=None, hang_s=20.0, unknown_s=60.0)
    step_beyond(daemon, 5)
    os.kill(trainer_of(daemon), signal.SIGSTOP)
    assert within(150, lambda: "TrainerHung" in kinds(run_dir))
    step_beyond(daemon, 5)
    daemon.call("Stop")
    assert daemon.wait() == 0, daemon.stderr
    holds(
        run_dir,
        "CommandRefused",
        "JournalRecovered",
        "StopAborted",
        "StorageExhausted",
        "StorageRelieved",
        "TrainerHung",
    )


def torn(run_dir: Path) -> None:
    """Half a frame after the last one, as a power cut leaves it: a copy of the last frame's head, and no body."""
    newest = max((run_dir / "journal").glob("*.wal"))
    written = newest.read_bytes().rstrip(b"\0")
    end = -(-len(written) // 4096) * 4096
    with newest.open("r+b") as file:
        file.seek(end)
        file.write(os.urandom(700))


def test_a_disk_that_fills(tmp_path):
    """A small file system, taken whole and given back."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", disk], check=True)
    try:
        daemon = DaemonProcess(made(disk / "run"), task="digits", epochs=100_000, sets=FAST, trainer_command=None)
        step_beyond(daemon, 20)
        with (disk / "ballast").open("wb", buffering=0) as ballast:
            # Below the floor of three segments and a checkpoint, and enough to say so.
            while shutil.disk_usage(disk).free > 3.5 * 65536:
                ballast.write(bytes(4096))
        daemon.until(lambda status: status["phase"] == "paused", "the pause")
        (disk / "ballast").unlink()
        step_beyond(daemon, 5)
        daemon.call("Stop", mode="now")
        assert daemon.wait() == 0, daemon.stderr
        holds(disk / "run", "DiskLow", "DiskRecovered")
        shutil.copytree(disk / "run" / "journal", tmp_path / "run" / "journal")
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_damage_on_disk_and_in_memory(tmp_path):
    """Checkpoints and slots of which a bit is flipped are refused; so is a journal, until its loss is accepted."""
    run_dir, sets = made(tmp_path / "run"), ["journal.segment_bytes=1000000", *FAST[:3]]
    daemon = DaemonProcess(run_dir, task="digits", epochs=100_000, sets=sets, trainer_command=None)
    step_beyond(daemon, 60)
    # A ring that is not mapped yet has nothing to go back to.
    assert within(60, lambda: of_type(run_dir, m.SnapshotPromoted))
    daemon.call("Pause")
    daemon.until(lambda status: status["phase"] == "paused", "the pause")
    # One that is still written would be newer than what is damaged.
    assert within(60, lambda: len(of_type(run_dir, m.CheckpointBegun)) == len(of_type(run_dir, m.CheckpointCommitted)))
    for path in newest_checkpoint(run_dir), *slots(daemon):
        flip(path)
    # In the pause: the first steps after it would bring a new snapshot and a new checkpoint, without damage.
    daemon.call("Rollback", tier="fast", reason="to what is damaged")
    assert within(60, lambda: of_type(run_dir, m.RolledBack))
    daemon.call("Resume")
    step_beyond(daemon, 10)
    daemon.kill()
    spoil_a_late_step(run_dir / "journal")
    repair(run_dir / "journal", accept_loss=gap_event(run_dir / "journal", plan_repair(run_dir / "journal").problem))
    daemon = DaemonProcess(run_dir, trainer_command=None, sets=None)
    daemon.until(lambda status: status["phase"] == "frozen" and not status["trainer"]["alive"], "the freeze")
    daemon.call("Resume", after_gap=True)
    step_beyond(daemon, 5)
    daemon.call("Stop", mode="now")
    assert daemon.wait() == 0, daemon.stderr
    holds(run_dir, "GapRecorded", "RollbackEscalated", "CheckpointRejected")


def spoil_a_late_step(journal: Path) -> None:
    """One bit of the last frame but three that has a step."""
    path = max(journal.glob("*.wal"))
    image = bytearray(path.read_bytes())
    at = len(image)
    for _ in range(4):
        at = image.rindex(STEP, 0, at)
    image[at + 40] ^= 1
    path.write_bytes(image)


def newest_checkpoint(run_dir: Path) -> Path:
    """The file of its weights."""
    return run_dir / "checkpoints" / of_type(run_dir, m.CheckpointCommitted)[-1].id / "model-00000.safetensors"


def slots(daemon: DaemonProcess) -> list[Path]:
    """The memory that snapshots lie in."""
    files = Path(f"/proc/{daemon.pid}/fd").iterdir()
    return [one for one in files if "tolaria-snapshots" in str(one.readlink())]


def flip(path: Path) -> None:
    """One bit of each 4 KiB."""
    with path.open("r+b") as file:
        for at in range(2048, os.fstat(file.fileno()).st_size, 4096):
            file.seek(at)
            bit = file.read(1)[0] ^ 1
            file.seek(at)
            file.write(bytes([bit]))


def made(run_dir: Path) -> Path:
    """The folder of a run."""
    run_dir.mkdir()
    return run_dir


def test_a_run_that_does_not_repeat_itself(tmp_path):
    """The task's loss differs at each attempt: the re-run after a death differs and the run fails. With `--retry` it
    goes on.
    """
    run_dir = made(tmp_path / "run")
    task = f"{ODD}:Forgetful"
    daemon = DaemonProcess(run_dir, task=task, epochs=100_000, sets=[SEGMENT, "torch_threads=1"], trainer_command=None)
    step_beyond(daemon, 30)
    os.kill(trainer_of(daemon), signal.SIGKILL)
    assert daemon.wait() == 70
    retried = DaemonProcess(run_dir, retry=True, trainer_command=None, sets=None)
    step_beyond(retried, 5)
    retried.call("Stop", mode="now")
    assert retried.wait() == 0, retried.stderr
    holds(run_dir, "RerunDiverged", "RunFailed", "RunRetried", "RunStopped")


def test_data_that_do_not_repeat_themselves(tmp_path):
    """Both is said at the first start: that an item differs, and that the order is drawn whole."""
    config = {"tolaria": {"rng_seed": 5, "torch_threads": 1, "journal": {"segment_bytes": 65536}}}
    model = nn.Linear(16, 4)
    loader = DataLoader(Anew(), 4, sampler=Hardest(model))
    assert Tolaria(config, run_dir=tmp_path / "run").train(model, loader, None, 2).phase == "completed"
    holds(tmp_path / "run", "InexactDataFound", "DataNoted")


def test_a_trainer_that_reports_nonsense(tmp_path):
    """It writes into the channel what is no report, and is replaced by one that does not."""
    run_dir = made(tmp_path / "run")
    task = f"{ODD}:Liar"
    daemon = DaemonProcess(run_dir, task=task, epochs=3, sets=[SEGMENT, "torch_threads=1"], trainer_command=None)
    assert daemon.wait() == 0, daemon.stderr
    holds(run_dir, "ReportRefused", "TrainerDied", "RunCompleted")


@pytest.mark.parametrize("route", ["wrapped_step", "item"])
def test_a_task_that_changes_rates_behind_the_runs_back(tmp_path, route):
    """The guard corrects a rate, only the audit finds another, and an ordered group has gone."""
    run_dir = made(tmp_path / "run")
    sets = [f"task_options.route={route}", "batch_size=8", "audit.every_steps=2", SEGMENT, "torch_threads=1"]
    task = f"{Path(tampering.__file__)}:Tampering"
    daemon = DaemonProcess(run_dir, task=task, epochs=3, sets=sets, trainer_command=None)
    assert daemon.wait() in (0, 70), daemon.stderr
    holds(run_dir, "AuditDiffered" if route == "wrapped_step" else "LrViolationDetected")


def test_a_run_with_metrics(tmp_path):
    """It dies once, and has each step's metrics once."""
    run_dir = made(tmp_path / "run")
    environ = {"TOLARIA_FAILPOINT": f"step:5@{tmp_path / 'token'}"}
    (tmp_path / "token").touch()
    sets = [SEGMENT, "torch_threads=1", "batch_size=32"]
    asked = {"task": f"{ODD}:Measured", "epochs": 2, "sets": sets, "trainer_command": None}
    daemon = DaemonProcess(run_dir, environ=environ, **asked)
    assert daemon.wait() == 0, daemon.stderr
    holds(run_dir, "MetricsNamed", "TrainerDied", "RerunFinished", "RunCompleted")


def test_a_careful_run(tmp_path):
    """Boundaries over a limit of 0 cause conservative mode. Without the limit the run leaves it after five healthy
    minutes.
    """
    run_dir, file = made(tmp_path / "run"), tmp_path / "run.yaml"
    text = "tolaria: {{task: {task}, torch_threads: 1, epochs: 100000, detect: {{act: false}}, {more}}}\n"
    task = f"{ODD}:Slower"
    more = "journal: {segment_bytes: 65536}, snapshots: {every: 1000}"
    file.write_text(text.format(task=task, more=f"{more}, performance: {{epoch_boundary_ms: 0.000001}}"))
    daemon = DaemonProcess(run_dir, config=str(file), trainer_command=None, sets=None)
    daemon.until(lambda status: status.get("conservative"), "the mode")
    daemon.call("Stop")
    assert daemon.wait() == 0, daemon.stderr
    file.write_text(text.format(task=task, more=f"{more}, performance: {{epoch_boundary_ms: 10000}}"))
    daemon = DaemonProcess(run_dir, config=str(file), trainer_command=None, sets=None, accept_config=True)
    time.sleep(300)
    assert within(60, lambda: "ConservativeModeLeft" in kinds(run_dir))
    daemon.call("Stop")
    assert daemon.wait() == 0, daemon.stderr
    holds(run_dir, "ConservativeModeLeft")


def test_an_epoch_without_a_step(tmp_path):
    """All its batches are in quarantine: there is no metric to judge a plateau by."""
    sets = ["learning_rate.policy=morpho_adaptive", "learning_rate.warmup_epochs=0", SEGMENT, "torch_threads=1"]
    daemon = DaemonProcess(made(tmp_path / "run"), task=f"{ODD}:Slow", epochs=100_000, sets=sets, trainer_command=None)
    step_beyond(daemon, 1)
    epoch = daemon.status()["epoch"] + 3
    daemon.call("QuarantineAdd", batches={"epoch": epoch, "first": 1, "last": 2})
    daemon.until(lambda status: status["epoch"] > epoch + 1, "the epoch after it")
    daemon.call("Stop", mode="now")
    assert daemon.wait() == 0, daemon.stderr
    holds(daemon.run_dir, "PlateauUnjudged", "StepSkipped")


class Odd:
    """A task of a program: its rates wait for a plateau, and its rebuild of the optimizer cannot be done."""

    def optimizer(self, model, cfg):
        self.own = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return self.own

    def on_step_end(self, model, step):
        if step == 5:
            coordinator = OptimizerRebuildCoordinator(self.own, model, controller_of(self.own))
            assert not coordinator.add_parameter("nowhere", (1,), (2,), "nothing.weight")


def test_a_program_whose_rates_wait_for_a_plateau(tmp_path):
    """Its validation never gets better: the rate falls. The optimizer cannot follow a change that there is not."""
    config = {
        "tolaria": {
            "rng_seed": 5,
            "torch_threads": 1,
            "journal": {"segment_bytes": 65536},
            "detect": {"act": False},
            "learning_rate": {"base_lr": 0.1, "warmup_epochs": 0, "policy": "morpho_adaptive"},
        }
    }
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 4))
    inputs = torch.randn(48, 16)
    wrong = TensorDataset(inputs, (inputs[:, :4].argmax(1) + 1) % 4)
    loader = DataLoader(data(), batch_size=12, shuffle=True)
    after = DataLoader(wrong, batch_size=24)
    tolaria = Tolaria(config, run_dir=tmp_path / "run")
    assert tolaria.train(model, loader, after, 30, task=Odd()).phase == "completed"
    holds(tmp_path / "run", "OptimizerRebuildAborted", "PlateauReached")


class Swelling:
    """Makes the machine look small after one epoch, and large again after another."""

    def __init__(self, machine):
        self.machine = machine

    def on_epoch_end(self, model, epoch, metrics):
        self.machine["SC_PHYS_PAGES"] = 2 if epoch == 1 else 1 << 20


def test_a_program_that_is_short_of_memory(tmp_path, monkeypatch):
    """The machine is said to have two pages, so the model takes more than its share. Then it is larger again."""
    machine = {"SC_PHYS_PAGES": 1 << 20, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(memory, "os", SimpleNamespace(sysconf=machine.__getitem__))
    config = {"tolaria": {"rng_seed": 5, "torch_threads": 1, "journal": {"segment_bytes": 65536}}}
    model, loader = nn.Linear(16, 40), DataLoader(data(), batch_size=12, shuffle=True)
    tolaria = Tolaria(config, run_dir=tmp_path / "run")
    assert tolaria.train(model, loader, None, 4, task=Swelling(machine)).phase == "completed"
    holds(tmp_path / "run", "MemoryPressed", "MemoryRelieved")
