"""A small language model: a causal transformer, AdamW, warm-up and cosine, gradients clipped."""

import math

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader

from tests.everyday.datasets import SYMBOLS, Text
from tolariad import Tolaria

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


class Clipping:
    def clip_gradients(self, model):
        return clip_grad_norm_(model.parameters(), 1.0)


torch.manual_seed(0)
train_loader = DataLoader(Text(128, seed=1), batch_size=16, shuffle=True)
val_loader = DataLoader(Text(32, seed=2), batch_size=16)
model = LanguageModel()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
rates = {"policy": "rates.py:warm_cosine", "base_lr": 3e-3}
config = {"rng_seed": 0, "checkpoint_interval_epochs": 1, "learning_rate": rates}
run = Tolaria({"tolaria": config}, run_dir="runs/text").run(model, optimizer, train_loader, task=Clipping())

for epoch in run.epochs(EPOCHS):
    for symbols, following in run.batches():
        loss = cross_entropy(model(symbols).flatten(0, 1), following.flatten())
        run.step(loss)
    model.eval()
    with torch.no_grad():
        losses = [cross_entropy(model(x).flatten(0, 1), y.flatten()).item() for x, y in val_loader]
    model.train()
    run.validated(loss=sum(losses) / len(losses))
    print(f"epoch {epoch}: perplexity {math.exp(sum(losses) / len(losses)):.2f}")

torch.save(model.state_dict(), "model.pt")
