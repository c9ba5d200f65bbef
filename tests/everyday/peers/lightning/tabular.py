"""Predict a value from a table: embedded categories, a multilayer perceptron, Adam, rates by steps, the best kept."""

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader

from tests.everyday.datasets import table

EPOCHS = 4


class TableNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Embedding(10, 4), nn.Embedding(10, 4)
        self.body = nn.Sequential(
            nn.Linear(14, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1), nn.Flatten(0)
        )

    def forward(self, categories, numbers):
        embedded = [self.first(categories[:, 0]), self.second(categories[:, 1])]
        return self.body(torch.cat([*embedded, numbers], 1))


torch.manual_seed(0)
train_loader = DataLoader(table(512, seed=1), batch_size=64, shuffle=True)
val_data = table(128, seed=2)
model = TableNet()


class TableModule(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = model

    def training_step(self, batch, _):
        categories, numbers, value = batch
        return mse_loss(model(categories, numbers), value)

    def validation_step(self, batch, _):
        categories, numbers, value = batch
        self.log("error", mse_loss(model(categories, numbers), value))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
        return [optimizer], [scheduler]


checkpoints = ModelCheckpoint("checkpoints", monitor="error", save_last=True)
trainer = lightning.Trainer(max_epochs=EPOCHS, callbacks=[checkpoints])
trainer.fit(TableModule(), train_loader, DataLoader(val_data, batch_size=128), ckpt_path="last")

torch.save(model.state_dict(), "model.pt")
