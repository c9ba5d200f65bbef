"""Train a GPT from a file of tokens: random windows of a memory map, accumulated gradients, warm-up and cosine."""

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader

from tests.everyday.datasets import SYMBOLS, prepared

ITERATIONS, ACCUMULATED, BATCH, BLOCK, WIDTH, HEADS = 32, 2, 8, 16, 32, 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.body = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x):
        parts = self.attention(self.before(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.projection(scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.body(self.after(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(SYMBOLS, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.Sequential(Block(), Block(), nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, SYMBOLS, bias=False)
        self.tokens.weight = self.head.weight

    def forward(self, x):
        return self.head(self.blocks(self.tokens(x) + self.places.weight))


class GPTTask:
    def train_data(self, cfg):
        self.tokens = np.memmap(prepared(Path("train.bin")), np.uint16, "r")
        self.generator = torch.Generator().manual_seed(1337)
        return DataLoader(range(ITERATIONS * ACCUMULATED), batch_size=None)

    def get_batch(self):
        starts = torch.randint(len(self.tokens) - BLOCK, (BATCH,), generator=self.generator)
        windows = np.stack([self.tokens[start : start + BLOCK + 1] for start in starts.tolist()])
        windows = torch.from_numpy(windows.astype(np.int64))
        return windows[:, :-1], windows[:, 1:]

    def model(self, cfg):
        return GPT()

    def loss(self, model, number):
        x, y = self.get_batch()
        return cross_entropy(model(x).flatten(0, 1), y.flatten())

    def clip_gradients(self, model):
        return clip_grad_norm_(model.parameters(), 1.0)

    def state_dict(self):
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, saved):
        self.generator.set_state(saved["generator"])
