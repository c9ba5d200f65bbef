"""Learn pictures and captions together: two encoders, one contrastive loss, one optimizer."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torch.utils.data import DataLoader

from tests.everyday.datasets import SYMBOLS, captioned


def similarity(model, pictures, words):
    return normalize(model["picture_encoder"](pictures)) @ normalize(model["text_encoder"](words)).T / 0.1


class ContrastiveTask:
    def train_data(self, cfg):
        return DataLoader(captioned(256, seed=1), batch_size=32, shuffle=True)

    def val_data(self, cfg):
        return captioned(64, seed=2)

    def model(self, cfg):
        picture_encoder = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 16))
        text_encoder = nn.Sequential(nn.EmbeddingBag(SYMBOLS, 32), nn.GELU(), nn.Linear(32, 16))
        return nn.ModuleDict({"picture_encoder": picture_encoder, "text_encoder": text_encoder})

    def loss(self, model, batch):
        logits = similarity(model, *batch)
        labels = torch.arange(len(logits))
        return (cross_entropy(logits, labels) + cross_entropy(logits.T, labels)) / 2

    def evaluate(self, model, batch):
        pictures, words = batch
        found = (similarity(model, pictures, words).argmax(1) == torch.arange(len(pictures))).float().mean()
        return {"found": found}
