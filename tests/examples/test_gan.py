"""The GAN of the examples: it trains, and a kill within a step or a rollback changes no bit of what comes out."""

from __future__ import annotations

import pytest
import torch

from tests.house.tree import ROOT
from tests.recorded import events_of, of, pieces
from tolariad import Tolaria
from tolariad.config import load
from tolariad.core import messages as m
from tolariad.trainer.tasks.task import find_task

EXAMPLE = ROOT / "examples" / "gan"
EPOCHS = 3


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The run in this process, undisturbed."""
    return trained(tmp_path_factory.mktemp("calm") / "run")


def trained(run, back_at=None):
    """Train the example in this process. `back_at`: the step in whose hook a rollback to epoch 1 is ordered, once."""
    settings = load(EXAMPLE / "config.yaml")
    task = find_task(settings.task).task
    tolaria = Tolaria(settings, run_dir=run)
    ordered = []

    def hook(model, step):
        if step == back_at and not ordered:
            ordered.append(tolaria.rollback(1))

    task.on_step_end = hook
    torch.manual_seed(0)
    result = tolaria.train(task.model(settings), task.train_data(settings), task.val_data(settings), EPOCHS, task=task)
    assert (result.phase, ordered) == ("completed", [] if back_at is None else [True])
    return run


def test_the_discriminator_learns_at_its_own_rate_and_the_generator_at_its_own(calm):
    """Two rates throughout; after three epochs the made images are closer to the real ones than after one."""
    events = events_of(calm)
    found = [one.metrics for one in of(events, m.ValidationFinished)]
    assert {one.lr for one in of(events, m.StepCompleted)} == {0.002}
    assert len(found) == EPOCHS
    assert found[-1]["difference"] < found[0]["difference"] < 0.5


def test_a_rollback_and_the_steps_after_it_end_with_the_same_bits(calm, tmp_path):
    """Both networks, both optimizers, the noise, the data."""
    run = trained(tmp_path / "run", back_at=55)
    (back,) = of(events_of(run), m.RolledBack)
    assert back.step == 23
    assert pieces(run) == pieces(calm)


def test_a_trainer_killed_between_two_updates_is_continued_to_the_same_bits(tmp_path, template):
    """By the daemon. The step had updated the discriminator only; it is made again as a whole."""
    token = tmp_path / "token"
    token.touch()
    # A step passes the point after each of its two updates, and when it is complete.
    runs = {"calm": "", "killed": f"step:{43 * 3 + 1}@{token}"}
    for name, failpoint in runs.items():
        arguments = ("run", EXAMPLE / "config.yaml", "--dir", tmp_path / name, "--epochs", "2")
        ended = template.run(arguments, folder=tmp_path, failpoint=failpoint)
        assert ended.returncode == 0, ended.stderr
    (died,) = of(events_of(tmp_path / "killed"), m.TrainerDied)
    assert (died.signal, token.exists()) == ("SIGKILL", False)
    assert pieces(tmp_path / "killed") == pieces(tmp_path / "calm")
