"""A LightningModule trained here has the weights that Lightning's own trainer gives it, also after restarts."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

pl = pytest.importorskip("lightning.pytorch")

from tolariad.trainer.build import build  # noqa: E402
from tolariad.trainer.data.randomness import derived_seed, seed_everything  # noqa: E402

FILE = Path(__file__).parents[1] / "tasks" / "lightning_modules.py"
pytestmark = pytest.mark.filterwarnings("ignore")

CASES = {
    "Convolutional": {"epochs": 20, "task_options": {"lr": 0.02}},
    "Perceptron": {
        "epochs": 20,
        "accumulate": 2,
        "task_options": {"lr": 0.3, "datamodule": "Rows", "gradient_clip_val": 0.05},
    },
    "Plateaus": {"epochs": 10, "task_options": {"lr": 0.3, "datamodule": "Rows"}},
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


class Seeded(pl.Callback):
    def on_train_start(self, trainer, module):
        seed_everything(derived_seed(7, "training"))


def lightnings(configuration, epochs, accumulate=1, task_options=None):
    """Train the same module by Lightning, on the batches that this trainer yields. Return its weights."""
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
    return theirs, trainer


@pytest.mark.parametrize("name", CASES)
def test_the_weights_are_those_of_lightnings_trainer_also_after_restarts(daemon_in, configured, name):
    """Two hundred steps, bit for bit: undisturbed, and restarted twice from a checkpoint within an epoch."""
    options = CASES[name]
    configuration = configured(f"lightning:{FILE}:{name}", **options)
    theirs, trainer = lightnings(configuration, **options)
    assert trainer.global_step == 200

    calm = daemon_in("calm", options["epochs"])
    ours = calm.train_here(configuration).model
    assert calm.last_step == 200
    differ = [key for key, value in theirs.state_dict().items() if not torch.equal(value, ours.state_dict()[key])]
    assert differ == []

    restarted = daemon_in("restarted", options["epochs"], checkpoint_every_epoch=False)
    for checkpoint, at in ((33, 37), (90, 95)):
        restarted.checkpoint_after_step, restarted.exit_after_step = checkpoint, at
        restarted.train_here(configuration)
    restarted.train_here(configuration)
    assert restarted.files("end") == calm.files("end")
