"""Train on a stream: an iterable dataset without a length, mixed by a shuffle buffer, a fixed number of updates."""

from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from tests.everyday.datasets import SYMBOLS, Stream, Text


class StreamTask:
    def train_data(self, cfg):
        return DataLoader(Stream(128, seed=1), batch_size=16)

    def val_data(self, cfg):
        return Text(1, seed=2, length=512)

    def model(self, cfg):
        return nn.Sequential(nn.Embedding(SYMBOLS, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, SYMBOLS))

    def loss(self, model, batch):
        symbols, following = batch
        return cross_entropy(model(symbols).flatten(0, 1), following.flatten())

    def evaluate(self, model, batch):
        return self.loss(model, batch)
