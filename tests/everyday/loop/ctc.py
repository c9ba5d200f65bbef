"""Recognize speech: sounds of different lengths in buckets, drawn by a batch sampler of its own, and the CTC loss."""

import math
import random

import torch
from torch import nn
from torch.nn.functional import ctc_loss
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from tests.everyday.datasets import Speech
from tolariad import Tolaria

EPOCHS = 2


class Buckets:
    """Batches of similar lengths, in an order that its generator draws."""

    def __init__(self, lengths, size, seed):
        self.lengths, self.size, self.random = lengths, size, random.Random(seed)

    def __len__(self):
        return math.ceil(len(self.lengths) / self.size)

    def __iter__(self):
        order = sorted(range(len(self.lengths)), key=lambda at: (self.lengths[at], self.random.random()))
        batches = [order[at : at + self.size] for at in range(0, len(order), self.size)]
        self.random.shuffle(batches)
        yield from batches


def padded(items):
    sounds, spoken = zip(*items, strict=True)
    lengths = torch.tensor([len(one) for one in sounds]), torch.tensor([len(one) for one in spoken])
    return pad_sequence(sounds), torch.cat(spoken), *lengths


class Recognizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.GRU(6, 16, bidirectional=True)
        self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(32, 6), nn.LogSoftmax(-1))

    def forward(self, sounds):
        return self.head(self.body(sounds)[0])


class Clipping:
    def clip_gradients(self, model):
        return clip_grad_norm_(model.parameters(), 5.0)


torch.manual_seed(0)
data = Speech(128, seed=1)
buckets = Buckets([len(one) for one in data.sounds], size=8, seed=4)
train_loader = DataLoader(data, batch_sampler=buckets, collate_fn=padded)
model = Recognizer()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
config = {"rng_seed": 0, "checkpoint_interval_epochs": 1}
run = Tolaria({"tolaria": config}, run_dir="runs/ctc").run(model, optimizer, train_loader, task=Clipping())

for epoch in run.epochs(EPOCHS):
    total = 0.0
    for sounds, spoken, times, lengths in run.batches():
        loss = ctc_loss(model(sounds), spoken, times, lengths, zero_infinity=True)
        run.step(loss)
        total += loss.item()
    print(f"epoch {epoch}: loss {total / len(train_loader):.3f}")

torch.save(model.state_dict(), "model.pt")
