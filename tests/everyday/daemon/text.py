"""A small language model: a causal transformer, AdamW, warm-up and cosine, gradients clipped."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader

from tests.everyday.datasets import SYMBOLS, Text

LENGTH, WIDTH = 16, 32


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


class TextTask:
    def train_data(self, cfg):
        return DataLoader(Text(128, seed=1), batch_size=16, shuffle=True)

    def val_data(self, cfg):
        return DataLoader(Text(32, seed=2), batch_size=16)

    def model(self, cfg):
        return LanguageModel()

    def loss(self, model, batch):
        symbols, following = batch
        return cross_entropy(model(symbols).flatten(0, 1), following.flatten())

    def clip_gradients(self, model):
        return clip_grad_norm_(model.parameters(), 1.0)

    def evaluate(self, model, batch):
        x, y = batch
        return cross_entropy(model(x).flatten(0, 1), y.flatten())
