"""LightningModules as people have them, to be trained by Lightning's own trainer and by this one."""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy


def images(count: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    made = torch.randn(count, 1, 8, 8, generator=generator)
    return TensorDataset(made, made.sum((1, 2, 3)).gt(0).long() + made[:, 0, 0, 0].gt(0).long())


class Convolutional(pl.LightningModule):
    """Batch norm, dropout, AdamW, one cycle with its momentum, metrics, and a copy that follows the weights."""

    def __init__(self, lr: float = 0.01, width: int = 8):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Flatten(),
            nn.Linear(width * 64, 3),
        )
        self.register_buffer("followed", torch.zeros(3))
        self.scale = 1.0
        self.seen = 0
        self.accuracy = MulticlassAccuracy(3)

    def forward(self, x):
        return self.net(x)

    def on_train_epoch_start(self):
        self.scale = 1.0 + 0.1 * self.current_epoch

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = functional.cross_entropy(self(x), y) * self.scale * (1.0 if batch_idx % 3 else 1.5)
        self.log("train_loss", loss, prog_bar=True)
        return {"loss": loss, "size": len(x)}

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.seen += outputs["size"]
        self.followed.lerp_(self.net[-1].bias.detach() + self.seen * 1e-6 + self.global_step * 1e-3, 0.1)
        with torch.no_grad():
            self.net[-1].bias.add_(self.followed, alpha=1e-3)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.accuracy(logits, y)
        self.log("val_loss", functional.cross_entropy(logits, y), prog_bar=True)
        self.log("val_accuracy", self.accuracy)

    def on_validation_epoch_end(self):
        self.log("val_bias", self.net[-1].bias.sum())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        steps = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=self.hparams.lr, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def train_dataloader(self):
        return DataLoader(images(160, 1), batch_size=16, shuffle=True)

    def val_dataloader(self):
        return DataLoader(images(40, 2), batch_size=16)


class Rows(pl.LightningDataModule):
    def __init__(self, batch_size: int = 8):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage):
        generator = torch.Generator().manual_seed(3)
        self.rows = torch.randn(160, 12, generator=generator)

    def train_dataloader(self):
        return DataLoader(TensorDataset(self.rows, self.rows[:, :3].sin()), self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(TensorDataset(self.rows[:32], self.rows[:32, :3].sin()), self.batch_size)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        x, y = batch
        return x * 1.25, y


class Perceptron(pl.LightningModule):
    """SGD with two groups, schedulers by epoch and by step, data of a data module; clipped and accumulated."""

    def __init__(self, lr: float, every: int = 3):
        super().__init__()
        self.lr, self.every = lr, every
        self.net = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 3))
        self.norms = 0.0

    def training_step(self, batch):
        x, y = batch
        return functional.mse_loss(self.net(x), y)

    def on_before_optimizer_step(self, optimizer):
        self.norms += float(optimizer.param_groups[0]["params"][0].grad.norm())

    def validation_step(self, batch, batch_idx):
        x, y = batch
        return functional.mse_loss(self.net(x), y)

    def configure_optimizers(self):
        first = {"params": self.net[0].parameters(), "lr": self.lr / 3, "name": "first"}
        optimizer = torch.optim.SGD([first, {"params": self.net[2].parameters()}], lr=self.lr, momentum=0.9)
        stairs = torch.optim.lr_scheduler.MultiStepLR(optimizer, [4, 9], 0.3)
        falling = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
        return [optimizer], [stairs, {"scheduler": falling, "interval": "step", "frequency": self.every}]


class Plateaus(Perceptron):
    """The rate falls when the loss of the validation does."""

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", super().validation_step(batch, batch_idx))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=0, threshold=0.1)
        return {"optimizer": optimizer, "lr_scheduler": scheduler, "monitor": "val_loss"}
