"""Tasks whose `training_step` makes the updates of a step itself: two networks against each other, on drawn data."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import softplus

WIDTH, NOISE = 6, 4


def networks():
    maker = nn.Sequential(nn.Linear(NOISE, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, WIDTH))
    judge = nn.Sequential(nn.Linear(WIDTH, 8), nn.LeakyReLU(0.2), nn.Dropout(0.2), nn.Linear(8, 1))
    return nn.ModuleDict({"maker": maker, "judge": judge})


class Adversaries:
    """The judge is updated twice in each step, the maker once. The second update of the judge reuses a graph."""

    def model(self, cfg):
        return networks()

    def optimizers(self, model):
        return {
            "judge": torch.optim.Adam(model["judge"].parameters(), lr=4e-3, betas=(0.5, 0.999)),
            "maker": torch.optim.SGD(model["maker"].parameters(), lr=1e-3, momentum=0.9),
        }

    def train_data(self, cfg):
        return (torch.randn(40, WIDTH),)

    def val_data(self, cfg):
        return None

    def losses(self, model, batch):
        """Yield each update: whose it is, its loss, whether the graph is needed again."""
        (real,) = batch
        made = model["maker"](torch.randn(len(real), NOISE))
        kept = 0.1 * made.square().mean()
        for _ in range(2):
            yield (
                "judge",
                softplus(-model["judge"](real)).mean() + softplus(model["judge"](made.detach())).mean(),
                False,
            )
        yield "maker", softplus(-model["judge"](made)).mean() + kept, True

    def training_step(self, model, batch, run):
        for name, loss, again in self.losses(model, batch):
            run.update(name, loss, retain_graph=again)
        return {"accuracy": 0.5}

    def evaluate(self, model, batch):
        return {}


class Configured(Adversaries):
    """Without optimizers of its own."""

    optimizers = None


class Clips(Adversaries):
    def clip_gradients(self, model):
        return nn.utils.clip_grad_norm_(model.parameters(), 0.05)


class Poisoned(Adversaries):
    """One sample spoils the loss of one update of its batch: `which` of the three."""

    which = 2

    def train_data(self, cfg):
        (data,) = super().train_data(cfg)
        data[17, 0] = 77.0
        return (data,)

    def losses(self, model, batch):
        (real,) = batch
        is_sick = bool((real == 77.0).any())
        for number, (name, loss, again) in enumerate(super().losses(model, (real.clamp(max=3.0),))):
            yield name, loss * float("nan") if is_sick and number == self.which else loss, again


class PoisonedFirst(Poisoned):
    which = 0


class SpikesLast(Poisoned):
    """The last loss of that batch is a thousand times as high, and finite."""

    def losses(self, model, batch):
        (real,) = batch
        for number, (name, loss, again) in enumerate(Adversaries.losses(self, model, (real.clamp(max=3.0),))):
            yield name, loss * 1000.0 if bool((real == 77.0).any()) and number == 2 else loss, again


class Grows(Adversaries):
    """After step 3 the judge gets a layer, which its optimizer trains on."""

    def on_step_end(self, model, step):
        if step == 3:
            from tolariad.trainer.lr import controller_of

            controller_of(model).grow("deeper")

    def grow(self, model, change):
        model["judge"].append(nn.Linear(1, 1))


class NeverUpdates(Adversaries):
    def training_step(self, model, batch, run):
        return {}


class Misspells(Adversaries):
    def training_step(self, model, batch, run):
        run.update("juge", model["judge"](batch[0]).mean())


class Detaches(Adversaries):
    def training_step(self, model, batch, run):
        run.update("judge", model["judge"](batch[0]).mean().detach())


class GivesText(Adversaries):
    def training_step(self, model, batch, run):
        super().training_step(model, batch, run)
        return {"loss": "high"}


class KeepsRun(Adversaries):
    """It updates outside of a step."""

    def training_step(self, model, batch, run):
        self.run = run
        return super().training_step(model, batch, run)

    def on_step_end(self, model, step):
        self.run.update("judge", model["judge"](torch.ones(2, WIDTH)).mean())


class GivesLoss(Adversaries):
    """The step's loss is a number of its own."""

    def training_step(self, model, batch, run):
        super().training_step(model, batch, run)
        return {"loss": torch.tensor([2.5]), "other": 1}
