"""Classes with the names and places of Lightning's: importing that takes seconds, and most promises need no more."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

HOOKS = (
    "configure_model",
    "prepare_data",
    "setup",
    "on_fit_start",
    "on_train_start",
    "on_train_epoch_start",
    "on_train_epoch_end",
    "on_train_batch_start",
    "on_train_batch_end",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_validation_start",
    "on_validation_end",
    "on_validation_epoch_start",
    "on_validation_epoch_end",
    "on_validation_batch_start",
    "on_validation_batch_end",
    "on_save_checkpoint",
    "on_load_checkpoint",
    "on_after_batch_transfer",
    "forward",
    "training_step",
    "validation_step",
    "configure_optimizers",
    "train_dataloader",
    "val_dataloader",
    "optimizer_step",
    "configure_callbacks",
    "on_train_end",
    "test_step",
    "test_dataloader",
    "on_test_start",
    "on_test_end",
    "on_test_epoch_start",
    "on_test_epoch_end",
    "on_test_batch_start",
    "on_test_batch_end",
    "predict_step",
    "of_a_newer_version",
    "log",
    "log_dict",
)


def _hook(name):
    def nothing(self, *arguments, **options):
        raise AssertionError(f"{name} is Lightning's own, and is not to be called")

    return nothing


def _class(name, bases, module):
    members = {name: _hook(name) for name in HOOKS}
    members["log_dict"] = lambda self, values, **options: [self.log(key, one, **options) for key, one in values.items()]
    return type(name, bases, {**members, "__module__": module, "automatic_optimization": True, "trainer": None})


LightningModule = _class("LightningModule", (nn.Module,), "lightning.pytorch.core.module")
LightningDataModule = _class("LightningDataModule", (), "pytorch_lightning.core.datamodule")


class Rows(LightningDataModule):
    def __init__(self, batch_size: int = 8):
        self.batch_size = batch_size

    def train_dataloader(self):
        rows = torch.arange(32.0).reshape(16, 2)
        return DataLoader(TensorDataset(rows, rows.sum(1, keepdim=True)), self.batch_size)

    val_dataloader = train_dataloader


class Line(LightningModule):
    """A line, with data of its own."""

    def __init__(self, lr: float = 0.001):
        super().__init__()
        self.lr, self.line = lr, nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return functional.mse_loss(self.line(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)

    train_dataloader = Rows(4).train_dataloader


class Tested(Line):
    """Has test data, and hooks that note when they are called, with the greatest value of the batches so far."""

    def setup(self, stage):
        self.stages = [*getattr(self, "stages", []), stage]

    def on_test_epoch_start(self):
        self.greatest = 0.0

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.greatest = max(self.greatest, float(x.max()))
        self.log("test_loss", functional.mse_loss(self.line(x), y))

    def on_test_epoch_end(self):
        self.log("greatest", self.greatest)
        self.log("setups", len(self.stages))

    test_dataloader = Rows(6).train_dataloader


class Noisy(Line):
    """Draws, cycles its momentum, counts, and validates."""

    def __init__(self):
        super().__init__()
        self.line = nn.Sequential(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 1))
        self.scale, self.seen = 1.0, 0

    def on_train_epoch_start(self):
        self.scale = 1.0 + 0.1 * self.trainer.current_epoch

    def training_step(self, batch, batch_idx):
        x, y = batch
        return functional.mse_loss(self.line(x / 32), y / 64) * self.scale * (1.0 + batch_idx)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.seen += 1
        with torch.no_grad():
            self.line[-1].bias.add_(self.seen * 1e-5 + self.trainer.global_step * 1e-4)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", functional.mse_loss(self.line(x / 32), y / 64))

    def on_validation_epoch_end(self):
        self.log("val_bias", self.line[-1].bias.sum())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        scheduler = OneCycleLR(optimizer, self.lr, total_steps=self.trainer.estimated_stepping_batches)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    train_dataloader = Rows(2).train_dataloader
    val_dataloader = Rows(4).train_dataloader
