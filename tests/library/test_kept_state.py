"""A state that is kept for its user: the commands that the run prints lead back there, pasted as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from torch.nn import functional
from torch.utils.data import DataLoader

from tests.library.inside import state_of
from tests.library.small import made
from tests.library.test_autopilot import BATCH, EPOCHS, SAMPLES, STRUCK, negated, network, rows
from tests.recorded import events_of, of
from tolariad.cli.tolaria import tolaria
from tolariad.core import messages as m


def pasted(command: str, *answers: str) -> subprocess.Popen:
    """Start the command in a shell. The answers stand for what a person types at its questions."""
    shell = f"tolaria() {{ {sys.executable} -c 'from tolariad.cli.tolaria import main; main()' \"$@\"; }}"
    return subprocess.Popen(["sh", "-c", f"{shell}; {' '.join((command, *answers))}"], cwd="/")


def printed(run_dir) -> str:
    """Return the command in the line of `tolaria status` that says what is kept."""
    shown = CliRunner().invoke(tolaria, ["status", str(run_dir)]).output
    (line,) = (one for one in shown.splitlines() if " is kept: " in one)
    (command,) = re.findall("`([^`]*)`", line)
    return command


def damaged(run_dir, hook=None):
    """A loop of one's own whose model is damaged at STRUCK. Nothing tells what would help: the state stays kept."""
    model = network()
    loader = DataLoader(rows(SAMPLES), BATCH, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    given = made(
        *(run_dir,),
        checkpoint={"min_gap_s": 0, "throttle_mb_s": None},
        learning_rate={"base_lr": 0.01, "warmup_epochs": 0},
        detect={"trial": False},
    )
    run = given.run(model, optimizer, loader)
    for _ in run.epochs(EPOCHS):
        for inputs, labels in run.batches():
            if int(model[1].num_batches_tracked) == STRUCK:
                negated(model)
            run.step(functional.cross_entropy(model(inputs), labels))
            if hook is not None and hook(given):
                hook = None
    return events_of(run_dir)


def test_the_command_that_status_prints_goes_back_to_the_kept_state_of_a_living_run(tmp_path):
    """The newest checkpoint from before the damage is the target, and the run stands there afterwards."""
    orders = []

    def go_back(given):
        state = state_of(given)
        if state.insurance.held_on_to is None:
            return False
        orders.append((printed(given.run_dir), state.insurance.held_on_to))
        order = pasted(orders[0][0], "--yes")
        orders.append(order)
        # It is obeyed at a boundary: this loop must go on once it is accepted.
        while order.poll() is None and not state_of(given).rollbacks.wanted:
            time.sleep(0.05)
        return True

    events = damaged(tmp_path / "run", go_back)
    (command, kept), order = orders
    assert order.wait(120) == 0
    (back,) = of(events, m.RolledBack)

    assert command == f"tolaria rollback {tmp_path / 'run'} --to {kept.checkpoint}"
    assert (back.checkpoint, back.step) == (kept.checkpoint, kept.step)
    assert kept.step <= STRUCK < back.from_step


def test_the_command_that_a_program_prints_at_its_end_writes_the_kept_weights(tmp_path, caplog):
    """No command can train a program's model. The closing line and the status say the same."""
    events = damaged(tmp_path / "it's a run")
    (kept,) = of(events, m.HeldOnTo)
    command = printed(tmp_path / "it's a run")
    assert pasted(command).wait(120) == 0
    written = load_file(tmp_path / "it's a run" / f"{kept.checkpoint}.safetensors")
    expected = load_file(tmp_path / "it's a run" / "checkpoints" / kept.checkpoint / "model-00000.safetensors")

    assert f"`{command}`" in caplog.messages[-1]
    assert written.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in written.items())
