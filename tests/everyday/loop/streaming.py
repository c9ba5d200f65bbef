"""Train on a stream: an iterable dataset without a length, mixed by a shuffle buffer, a fixed number of updates."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from tests.everyday.datasets import SYMBOLS, Stream, Text
from tolariad import Tolaria

EPOCHS = 4

torch.manual_seed(0)
train_loader = DataLoader(Stream(128, seed=1), batch_size=16)
val_symbols, val_following = Text(1, seed=2, length=512)[0]
model = nn.Sequential(nn.Embedding(SYMBOLS, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, SYMBOLS))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
config = {"rng_seed": 0, "checkpoint_interval_epochs": 1, "stop": {"steps": 1000}}
run = Tolaria({"tolaria": config}, run_dir="runs/streaming").run(model, optimizer, train_loader)

for epoch in run.epochs(EPOCHS):
    for symbols, following in run.batches():
        loss = cross_entropy(model(symbols).flatten(0, 1), following.flatten())
        run.step(loss)
    model.eval()
    with torch.no_grad():
        val_loss = cross_entropy(model(val_symbols), val_following).item()
    model.train()
    run.validated(loss=val_loss)
    print(f"epoch {epoch}: loss {val_loss:.3f}")

torch.save(model.state_dict(), "model.pt")
