"""A small language model: a causal transformer, AdamW, warm-up and cosine, gradients clipped."""

import math
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
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
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warm_cosine)
saved = len(list(Path("checkpoints").glob("*")))
config = ProjectConfiguration(".", automatic_checkpoint_naming=True, iteration=saved)
accelerator = Accelerator(project_config=config)
model, optimizer, train_loader, scheduler = accelerator.prepare(model, optimizer, train_loader, scheduler)
if saved:
    accelerator.load_state()

for epoch in range(saved, EPOCHS):
    for symbols, following in train_loader:
        loss = cross_entropy(model(symbols).flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    model.eval()
    with torch.no_grad():
        losses = [cross_entropy(model(x).flatten(0, 1), y.flatten()).item() for x, y in val_loader]
    model.train()
    print(f"epoch {epoch + 1}: perplexity {math.exp(sum(losses) / len(losses)):.2f}")
    accelerator.save_state()

torch.save(accelerator.unwrap_model(model).state_dict(), "model.pt")
