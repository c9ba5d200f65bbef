"""Train on a stream: an iterable dataset without a length, mixed by a shuffle buffer, a fixed number of updates."""

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from tests.everyday.datasets import SYMBOLS, Stream, Text

EPOCHS = 4

torch.manual_seed(0)
train_loader = DataLoader(Stream(128, seed=1), batch_size=16)
val_loader = DataLoader(Text(1, seed=2, length=512))
model = nn.Sequential(nn.Embedding(SYMBOLS, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, SYMBOLS))


class StreamModule(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = model

    def training_step(self, batch, _):
        symbols, following = batch
        return cross_entropy(model(symbols).flatten(0, 1), following.flatten())

    def validation_step(self, batch, _):
        symbols, following = batch
        self.log("loss", cross_entropy(model(symbols).flatten(0, 1), following.flatten()))

    def configure_optimizers(self):
        return torch.optim.AdamW(model.parameters(), lr=1e-2)


checkpoints = ModelCheckpoint("checkpoints", save_last=True)
trainer = lightning.Trainer(max_epochs=EPOCHS, callbacks=[checkpoints])
trainer.fit(StreamModule(), train_loader, val_loader, ckpt_path="last")

torch.save(model.state_dict(), "model.pt")
