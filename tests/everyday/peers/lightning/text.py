"""A small language model: a causal transformer, AdamW, warm-up and cosine, gradients clipped."""

import math

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from tests.everyday.datasets import SYMBOLS, Text

EPOCHS, LENGTH, WIDTH = 4, 16, 32


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.block = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.1, batch_first=True)
        self.head = nn.Linear(WIDTH, SYMBOLS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, symbols):
        return self.head(self.block(self.symbols(symbols) + self.places, self.mask))


def warm_cosine(step, steps=32, warm=4):
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))


torch.manual_seed(0)
train_loader = DataLoader(Text(128, seed=1), batch_size=16, shuffle=True)
val_loader = DataLoader(Text(32, seed=2), batch_size=16)
model = LanguageModel()


class TextModule(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = model

    def training_step(self, batch, _):
        symbols, following = batch
        return cross_entropy(model(symbols).flatten(0, 1), following.flatten())

    def validation_step(self, batch, _):
        x, y = batch
        self.log("loss", cross_entropy(model(x).flatten(0, 1), y.flatten()))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warm_cosine)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


checkpoints = ModelCheckpoint("checkpoints", save_last=True)
trainer = lightning.Trainer(max_epochs=EPOCHS, callbacks=[checkpoints], gradient_clip_val=1.0)
trainer.fit(TextModule(), train_loader, val_loader, ckpt_path="last")

torch.save(model.state_dict(), "model.pt")
