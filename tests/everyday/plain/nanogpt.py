"""Train a GPT from a file of tokens: random windows of a memory map, accumulated gradients, warm-up and cosine."""

import math
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.utils import clip_grad_norm_

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


def warm_cosine(step, steps=ITERATIONS, warm=4):
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))


tokens = np.memmap(prepared(Path("train.bin")), np.uint16, "r")
generator = torch.Generator().manual_seed(1337)


def get_batch():
    starts = torch.randint(len(tokens) - BLOCK, (BATCH,), generator=generator)
    windows = np.stack([tokens[start : start + BLOCK + 1] for start in starts.tolist()])
    windows = torch.from_numpy(windows.astype(np.int64))
    return windows[:, :-1], windows[:, 1:]


torch.manual_seed(0)
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)

for step in range(ITERATIONS):
    for group in optimizer.param_groups:
        group["lr"] = 3e-3 * warm_cosine(step)
    for _ in range(ACCUMULATED):
        x, y = get_batch()
        loss = cross_entropy(model(x).flatten(0, 1), y.flatten())
        (loss / ACCUMULATED).backward()
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if step % 8 == 7:
        print(f"iteration {step + 1}: loss {loss.item():.3f}")

torch.save(model.state_dict(), "model.pt")
