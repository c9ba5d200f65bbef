"""Fine-tune a trained network: its first layers stay frozen, the last ones get two rates, lowered on a plateau."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from tests.everyday.datasets import Images, saved_weights


class Frozen(nn.Sequential):
    def train(self, mode=True):
        return super().train(False)


class FinetuningTask:
    def train_data(self, cfg):
        return DataLoader(Images(256, seed=1), batch_size=32, shuffle=True)

    def val_data(self, cfg):
        return Images(128, seed=2)

    def model(self, cfg):
        backbone = Frozen(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        neck = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Flatten())
        backbone.load_state_dict(saved_weights(backbone))
        neck.load_state_dict(saved_weights(neck))
        backbone.requires_grad_(False)
        head = nn.Sequential(nn.Dropout(0.2), nn.Linear(128, 4))
        return nn.Sequential(backbone, neck, head)

    def optimizer(self, model, cfg):
        _, neck, head = model
        return torch.optim.Adam([{"params": neck.parameters(), "lr": 1e-3}, {"params": head.parameters(), "lr": 1e-2}])

    def loss(self, model, batch):
        images, labels = batch
        return cross_entropy(model(images), labels)

    def evaluate(self, model, batch):
        images, labels = batch
        return cross_entropy(model(images), labels)
