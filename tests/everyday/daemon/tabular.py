"""Predict a value from a table: embedded categories, a multilayer perceptron, Adam, rates by steps, the best kept."""

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader

from tests.everyday.datasets import table


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


class TableTask:
    def train_data(self, cfg):
        return DataLoader(table(512, seed=1), batch_size=64, shuffle=True)

    def val_data(self, cfg):
        return table(128, seed=2)

    def model(self, cfg):
        return TableNet()

    def loss(self, model, batch):
        categories, numbers, value = batch
        return mse_loss(model(categories, numbers), value)

    def evaluate(self, model, batch):
        categories, numbers, value = batch
        return {"error": mse_loss(model(categories, numbers), value)}
