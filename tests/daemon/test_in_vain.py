"""A real run whose loss jumps for good: two rollbacks, then a halt or conservative mode, as configured."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from tests.daemon.harness import SETS, of_type
from tests.recorded import events_of, of
from tests.waiting import wait_for
from tolariad.cli.progress import closing_words
from tolariad.cli.status import folded
from tolariad.cli.tolaria import tolaria
from tolariad.core import messages as m

STEPS = 640
TASK = '''
import torch
from torch import nn
from torch.nn import functional

class Faint(nn.Module):
    """From its 401st training pass on, outputs are smaller and the loss is several times as high.

    A rollback restores the number of passes.
    """

    def __init__(self):
        super().__init__()
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs):
        self.passes += self.training
        return inputs if int(self.passes) <= 400 else inputs * 0.1


class Jumps:
    def model(self, cfg):
        return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4), Faint())

    def train_data(self, cfg):
        drawn = torch.Generator().manual_seed(1)
        inputs = torch.randn(20 * 16, 16, generator=drawn)
        return inputs, inputs[:, :4].argmax(1)

    def val_data(self, cfg):
        return None

    def loss(self, model, batch):
        inputs, labels = batch
        return functional.cross_entropy(model(inputs), labels)

    def evaluate(self, model, batch):
        return {}
'''


@pytest.fixture
def jumping(start, tmp_path):
    """Start a daemon with the task, 20 steps in an epoch."""
    file = tmp_path / "jumps.py"
    file.write_text(TASK)

    def begin(*sets: str, folder=None):
        given = (
            *SETS,
            "batch_size=16",
            "torch_threads=1",
            "learning_rate.base_lr=0.01",
            "rng_seed=1",
            "learning_rate.warmup_epochs=0",
        )
        given += ("checkpoint_interval_epochs=1", "checkpoint.min_gap_s=0", "budgets.act=false")
        given += sets
        where = {} if folder is None else {"run_dir": folder}
        return start(task=f"{file}:Jumps", epochs=STEPS // 20, trainer_command=None, sets=list(given), **where)

    return begin


def exported(run_dir):
    """Return the tensors of the kept state, and those that `export-weights` writes without being told of which."""
    (pinned, *_) = of_type(run_dir, m.StatePinned)
    file = run_dir / "exported.safetensors"
    assert CliRunner().invoke(tolaria, ["export-weights", str(run_dir), "-o", str(file)]).exit_code == 0
    return load_file(run_dir / "checkpoints" / pinned.checkpoint / "model-00000.safetensors"), load_file(file)


def test_a_jump_that_two_rollbacks_do_not_help_halts_or_goes_on_as_configured(jumping, run_dir):
    """With `detect.halt: true` the run is frozen, and the status gives the reason. Weights that are exported then are
    the last healthy ones. Resumed, it completes.
    """
    daemon = jumping("detect.halt=true")
    status = daemon.until(lambda status: status["phase"] == "frozen" and not status["trainer"]["alive"], "the halt")
    assert status["frozen"].startswith("sustained: loss ")
    assert "2 returns did not help" in status["frozen"]
    pinned, kept = exported(run_dir)
    assert kept.keys() == pinned.keys()
    assert all(torch.equal(tensor, pinned[name]) for name, tensor in kept.items())
    insured = [one.returns for one in of_type(run_dir, m.InstabilityDetected) if one.insured]
    assert (insured[0], insured[-1]) == (0, 2)
    assert len(of_type(run_dir, m.RolledBack)) == 2
    daemon.call("Resume")
    assert daemon.wait() == 0, daemon.stderr
    assert len(of_type(run_dir, m.RunFrozen)) == len(of_type(run_dir, m.RunCompleted)) == 1
    assert len(of_type(run_dir, m.RolledBack)) == 2


@pytest.mark.torture
def test_the_command_of_the_closing_line_begins_another_run_at_the_kept_state(jumping, run_dir):
    """The jump comes so late that it is not explained before the end. Pasted as it stands, with an end, the command
    trains on from the kept weights and optimizer.
    """
    daemon = jumping("epochs=22")
    assert daemon.wait() == 0, daemon.stderr
    (kept,) = of_type(run_dir, m.HeldOnTo)
    (command,) = set(re.findall("`(tolariad [^`]*)`", daemon.stderr))
    shell = f"tolariad() {{ {sys.executable} -c 'from tolariad.cli.tolariad import main; main()' \"$@\"; }}"
    again = subprocess.run(
        ["sh", "-c", f"{shell}; {command} --epochs 1"], cwd="/", check=False, capture_output=True, text=True
    )
    assert again.returncode == 0, again.stderr
    other = run_dir.with_name(f"{run_dir.name}-{kept.checkpoint}")
    (begun,) = of_type(other, m.RunStarted)

    assert (begun.began_from.checkpoint, begun.parent) == (kept.checkpoint, of_type(run_dir, m.RunStarted)[0].run_id)
    assert len(of_type(other, m.RunCompleted)) == 1
    shown = closing_words(folded(run_dir / "journal"), run_dir)[0]
    assert [one for one in shown if f"`{command}`" in one]


def decided(run_dir):
    """Return what the autopilot did, by step, and the weights at the end."""
    kinds = (m.StatePinned, m.StatesCompared, m.RolledBack, m.QuarantineAdded, m.PinReleased, m.HeldOnTo)
    done = [(type(one).__name__, getattr(one, "step", None)) for one in of(events_of(run_dir), *kinds)]
    last = of_type(run_dir, m.RunCompleted)[-1].checkpoint
    return done, (run_dir / "checkpoints" / last / "model-00000.safetensors").read_bytes()


@pytest.mark.torture
@pytest.mark.parametrize("moment", ["StatePinned", "ComparisonBegun", "StatesCompared", "RollbackBegun", "RolledBack"])
def test_a_daemon_that_is_killed_at_any_moment_comes_to_the_same_decisions_and_bits(jumping, run_dir, moment):
    """As soon as the journal has the event. The trainer ends with it; the next start has both again."""
    calm = run_dir.with_name("calm")
    snapshots = "rollback.fast_path_enabled=false"
    undisturbed = jumping(snapshots, folder=calm)
    assert undisturbed.wait() == 0, undisturbed.stderr
    daemon = jumping(snapshots)
    daemon.until(lambda status: status["step"], "a step")
    wait_for(lambda: moment in kinds_of(run_dir))
    daemon.kill()
    again = jumping(snapshots)
    assert again.wait() == 0, again.stderr

    assert len(of_type(run_dir, m.DaemonStarted)) == 2
    assert len(of_type(run_dir, m.HeldOnTo)) == 1
    assert decided(run_dir) == decided(calm)


def kinds_of(run_dir) -> set[str]:
    """Return the types of the events so far."""
    return {type(one).__name__ for one in events_of(run_dir)}


@pytest.mark.torture
def test_by_default_such_a_run_goes_on_in_conservative_mode_and_completes(jumping, run_dir):
    """Without `detect.halt` the run continues by itself. tests/library/test_in_vain.py has the short form."""
    daemon = jumping()
    assert daemon.wait() == 0, daemon.stderr
    (entered,) = of_type(run_dir, m.ConservativeModeEntered)

    (kept,) = of_type(run_dir, m.HeldOnTo)
    assert "2 returns did not help" in kept.why
    assert entered.why == f"{kept.why}; the run goes on"
    assert entered.cause == kept.cause
    assert f"--from {run_dir}@{kept.checkpoint} " in daemon.stderr
    assert len(of_type(run_dir, m.RolledBack)) == 2
    assert of_type(run_dir, m.RunFrozen) == []
    assert len(of_type(run_dir, m.RunCompleted)) == 1
