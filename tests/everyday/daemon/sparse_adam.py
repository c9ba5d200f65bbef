"""Vectors of words from their neighbours: two sparse embeddings, negatives drawn in each step, SparseAdam."""

import torch
from torch import nn
from torch.nn.functional import logsigmoid
from torch.utils.data import DataLoader

from tests.everyday.datasets import neighbours

NEGATIVES = 5


class SkipGram(nn.Module):
    def __init__(self):
        super().__init__()
        self.centre, self.context = nn.Embedding(200, 16, sparse=True), nn.Embedding(200, 16, sparse=True)

    def forward(self, words, near, far):
        centre = self.centre(words)[:, None]
        alike = (centre * self.context(near)[:, None]).sum(-1)
        unlike = (centre * self.context(far)).sum(-1)
        return -(logsigmoid(alike).sum(1) + logsigmoid(-unlike).sum(1)).mean()


class SkipGramTask:
    def train_data(self, cfg):
        return DataLoader(neighbours(512, seed=1), batch_size=32, shuffle=True)

    def model(self, cfg):
        return SkipGram()

    def optimizer(self, model, cfg):
        return torch.optim.SparseAdam(model.parameters(), lr=1e-2)

    def loss(self, model, batch):
        words, near = batch
        return model(words, near, torch.randint(200, (len(words), NEGATIVES)))
