"""A LightningModule trained here has the weights that Lightning's own trainer gives it, also after kills.

Lightning takes seconds to import: only the tests that need it do so, when they run.
"""

from __future__ import annotations

import copy
import importlib.util
import json
from pathlib import Path

import pytest
import torch

from tests.recorded import events_of, of, pieces
from tolariad.core import messages as m
from tolariad.trainer.build import build
from tolariad.trainer.data.randomness import derived_seed, seed_everything
from tolariad.trainer.lightning.hooks import CALLED, ELSEWHERE, REFUSED, hooks_of

FILE = Path(__file__).parents[1] / "tasks" / "lightning_modules.py"
STUB = Path(__file__).with_name("stub.py")
WITH_LIGHTNING = pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")
# Steps of each case, in the ordinary suite and in the long one.
SHORT, LONG = 80, 200

# The epochs are those of a long run.
CASES = {
    "Convolutional": {"epochs": 20, "task_options": {"lr": 0.02}},
    "Perceptron": {
        "epochs": 20,
        "accumulate": 2,
        "task_options": {"lr": 0.3, "datamodule": "Rows", "gradient_clip_val": 0.05},
    },
    "Plateaus": {"epochs": 20, "task_options": {"lr": 0.3, "datamodule": "Rows", "batch_size": 16}},
}


class Recorded:
    """The batches of a feed, epoch by epoch, as a loader that draws nothing."""

    def __init__(self, feed, validation=False):
        self.feed, self.epoch, self.validation = feed, 0, validation

    def __iter__(self):
        # A generator: Lightning also calls iter() to see whether it can.
        self.epoch += 1
        yield from self.feed.epoch(0 if self.validation else self.epoch, 0)

    def __len__(self):
        return self.feed.batches


def lightnings(configuration, epochs, accumulate=1, task_options=None):
    """Train the same module by Lightning, on the batches that this trainer yields. Return the module and its steps."""
    import lightning.pytorch as pl

    class Seeded(pl.Callback):
        def on_train_start(self, trainer, module):
            seed_everything(derived_seed(7, "training"))

    setup = build(configuration)
    theirs = type(setup.model)(**{k: v for k, v in task_options.items() if k in ("lr", "every", "width")})
    theirs.load_state_dict(setup.model.state_dict())
    datamodule = copy.copy(setup.task._source) if setup.task._source is not setup.model else None
    if datamodule is not None:
        theirs.on_after_batch_transfer = datamodule.on_after_batch_transfer
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        accumulate_grad_batches=accumulate,
        gradient_clip_val=task_options.get("gradient_clip_val"),
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Seeded()],
    )
    trainer.fit(theirs, Recorded(setup.train), Recorded(setup.validation, validation=True))
    return theirs, trainer.global_step


@WITH_LIGHTNING
@pytest.mark.sample(1)
@pytest.mark.parametrize("steps", [SHORT, pytest.param(LONG, marks=pytest.mark.torture)])
@pytest.mark.parametrize("name", CASES)
def test_the_weights_are_those_of_lightnings_trainer_also_after_restarts(daemon_in, configured, name, steps):
    """Bit for bit: undisturbed, and restarted twice from a checkpoint within an epoch."""
    case = CASES[name]
    options = {**case, "epochs": case["epochs"] * steps // LONG}
    configuration = configured(f"lightning:{FILE}:{name}", **options)
    module, trained = lightnings(configuration, **options)
    theirs = module.state_dict()
    assert trained == steps

    calm = daemon_in(name, options["epochs"])
    setup = calm.train_here(configuration)
    ours = setup.model.state_dict()
    assert (calm.last_step, calm.skips) == (steps, [])
    assert [key for key, value in theirs.items() if not torch.equal(value, ours[key])] == []
    assert len({report.lr for report in calm.steps.values()}) > 2

    restarted = daemon_in(f"{name} restarted", options["epochs"], checkpoint_every_epoch=False)
    for checkpoint, at in ((13, 17), (45, 49)):
        restarted.checkpoint_after_step, restarted.exit_after_step = checkpoint, at
        restarted.train_here(configuration)
    restarted.train_here(configuration)
    assert restarted.files("end") == calm.files("end")


@WITH_LIGHTNING
def test_every_hook_of_this_lightning_is_in_one_table():
    """A newer version with another hook fails here, and refuses it in a module that has it."""
    import lightning.pytorch as pl

    hooks = {*hooks_of(pl.LightningModule), *hooks_of(pl.LightningDataModule)}
    assert hooks - CALLED - ELSEWHERE - set(REFUSED) == set()
    assert (set(REFUSED) | ELSEWHERE) - hooks == set()
    assert not CALLED & ELSEWHERE | CALLED & set(REFUSED) | ELSEWHERE & set(REFUSED)


@pytest.mark.parametrize(
    "module",
    [f"{STUB}:Noisy", pytest.param(f"{FILE}:Convolutional", marks=[pytest.mark.torture, WITH_LIGHTNING])],
    ids=["stub", "lightning"],
)
def test_a_run_of_the_daemon_that_is_killed_twice_ends_with_the_same_bits(
    module, daemon_in, configured, tmp_path, template
):
    """SIGKILL within two epochs: its last checkpoint is that of a run in this process."""
    options = {"epochs": 3, "rng_seed": 5, "torch_threads": 1}
    calm = daemon_in("calm", 3)
    calm.train_here(configured(f"lightning:{module}", **options))

    tokens = [tmp_path / "one", tmp_path / "two"]
    for token in tokens:
        token.touch()
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"tolaria": {"task": f"lightning:{module}", **options}}))
    # Each trainer counts anew. The second makes the steps after the last checkpoint again.
    killed = f"step:14@{tokens[0]},validation:4@{tokens[1]}"
    done = template.run(["run", config, "--dir", tmp_path / "killed"], folder=tmp_path, failpoint=killed)
    assert done.returncode == 0, done.stderr
    events = events_of(tmp_path / "killed")
    assert [one.signal for one in of(events, m.TrainerDied)] == ["SIGKILL"] * 2
    assert not any(token.exists() for token in tokens)
    assert {name for one in of(events, m.ValidationFinished) for name in one.metrics} >= {"loss", "val_bias"}
    assert pieces(tmp_path / "killed") == calm.files("end")


def test_a_module_is_validated_within_its_epochs_exactly_through_kills(tmp_path, template):
    """Killed in a step and in a validation within an epoch: every validation once, with the metrics of a calm run."""
    config = tmp_path / "config.json"
    options = {"epochs": 2, "rng_seed": 5, "torch_threads": 1, "validate": {"every_steps": 3}, "keep_best": "loss"}
    config.write_text(json.dumps({"tolaria": {"task": f"lightning:{STUB}:Noisy", **options}}))
    tokens = [tmp_path / "one", tmp_path / "two"]
    for token in tokens:
        token.touch()

    def run(name, failpoint=""):
        done = template.run(["run", config, "--dir", tmp_path / name], folder=tmp_path, failpoint=failpoint)
        assert done.returncode == 0, done.stderr
        events = events_of(tmp_path / name)
        within = [(one.epoch, one.batch, one.step, one.metrics) for one in of(events, m.ValidationFinished)]
        best = [(one.epoch, one.batch, one.value) for one in of(events, m.ValidationImproved)]
        return within, best, pieces(tmp_path / name), [one.signal for one in of(events, m.TrainerDied)]

    *calm, deaths = run("calm")
    assert deaths == []
    assert {"loss", "val_bias"} <= calm[0][0][3].keys()
    assert [step for _, batch, step, _ in calm[0] if batch] == [3, 6, 9, 12, 15]
    *killed, deaths = run("killed", f"step:7@{tokens[0]},validation:2@{tokens[1]}")
    assert (deaths, killed) == (["SIGKILL"] * 2, calm)
