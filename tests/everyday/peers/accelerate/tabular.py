"""Predict a value from a table: embedded categories, a multilayer perceptron, Adam, rates by steps, the best kept."""

from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
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


class Best:
    error = float("inf")

    def state_dict(self):
        return {"error": self.error}

    def load_state_dict(self, state):
        self.error = state["error"]


torch.manual_seed(0)
train_loader = DataLoader(table(512, seed=1), batch_size=64, shuffle=True)
val_data = table(128, seed=2)
model = TableNet()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
best = Best()
saved = len(list(Path("checkpoints").glob("*")))
config = ProjectConfiguration(".", automatic_checkpoint_naming=True, iteration=saved)
accelerator = Accelerator(project_config=config)
model, optimizer, train_loader, scheduler = accelerator.prepare(model, optimizer, train_loader, scheduler)
accelerator.register_for_checkpointing(best)
if saved:
    accelerator.load_state()

for epoch in range(saved, EPOCHS):
    for categories, numbers, value in train_loader:
        loss = mse_loss(model(categories, numbers), value)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
    scheduler.step()
    model.eval()
    with torch.no_grad():
        categories, numbers, value = val_data.tensors
        error = mse_loss(model(categories, numbers), value).item()
    model.train()
    print(f"epoch {epoch + 1}: error {error:.4f}")
    if error < best.error:
        best.error = error
        torch.save(accelerator.unwrap_model(model).state_dict(), "best.pt")
    accelerator.save_state()

torch.save(accelerator.unwrap_model(model).state_dict(), "model.pt")
