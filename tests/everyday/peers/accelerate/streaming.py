"""Train on a stream: an iterable dataset without a length, mixed by a shuffle buffer, a fixed number of updates."""

from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from tests.everyday.datasets import SYMBOLS, Stream, Text

EPOCHS = 4

torch.manual_seed(0)
train_loader = DataLoader(Stream(128, seed=1), batch_size=16)
val_symbols, val_following = Text(1, seed=2, length=512)[0]
model = nn.Sequential(nn.Embedding(SYMBOLS, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, SYMBOLS))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
saved = len(list(Path("checkpoints").glob("*")))
config = ProjectConfiguration(".", automatic_checkpoint_naming=True, iteration=saved)
accelerator = Accelerator(project_config=config)
model, optimizer, train_loader = accelerator.prepare(model, optimizer, train_loader)
if saved:
    accelerator.load_state()

for epoch in range(saved, EPOCHS):
    for symbols, following in train_loader:
        loss = cross_entropy(model(symbols).flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
    model.eval()
    with torch.no_grad():
        val_loss = cross_entropy(model(val_symbols), val_following).item()
    model.train()
    print(f"epoch {epoch + 1}: loss {val_loss:.3f}")
    accelerator.save_state()

torch.save(accelerator.unwrap_model(model).state_dict(), "model.pt")
