"""Predict a value from a table: embedded categories, a multilayer perceptron, Adam, rates by steps, the best kept."""

import torch
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
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
best = float("inf")

for epoch in range(EPOCHS):
    for categories, numbers, value in train_loader:
        loss = mse_loss(model(categories, numbers), value)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    scheduler.step()
    model.eval()
    with torch.no_grad():
        categories, numbers, value = val_data.tensors
        error = mse_loss(model(categories, numbers), value).item()
    model.train()
    print(f"epoch {epoch + 1}: error {error:.4f}")
    if error < best:
        best = error
        torch.save(model.state_dict(), "best.pt")

torch.save(model.state_dict(), "model.pt")
