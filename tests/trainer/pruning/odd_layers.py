"""Odd parts of a model: recurrent layers, attention, dtypes."""

from __future__ import annotations

import torch
from torch import nn

from tests.trainer.pruning.odd import LENGTH, Odd


class Recurrent(Odd):
    kind = nn.LSTM

    def make(self):
        self.part = self.kind(16, 16, batch_first=True)

    def odd(self, x):
        return self.part(x)[0]


class Gru(Recurrent):
    kind = nn.GRU


class Elman(Recurrent):
    kind = nn.RNN


class BothWays(Recurrent):
    def make(self):
        self.part = nn.LSTM(16, 8, num_layers=2, batch_first=True, bidirectional=True)


class LastState(Recurrent):
    """Only the last hidden state is read."""

    def odd(self, x):
        return self.part(x)[1][0][-1]


class Packed(Recurrent):
    def odd(self, x):
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3, 2])[: len(x)], batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(self.part(packed)[0], batch_first=True)[0]


class Cell(Odd):
    def make(self):
        self.part = nn.GRUCell(16, 16)

    def odd(self, x):
        state = None
        for at in range(LENGTH):
            state = self.part(x[:, at], state)
        return state


class Attending(Odd):
    def make(self):
        self.part = nn.MultiheadAttention(16, 2, batch_first=True)

    def odd(self, x):
        return self.part(x, x, x)[0]


class ZeroAttending(Attending):
    def make(self):
        self.part = nn.MultiheadAttention(16, 2, add_zero_attn=True, add_bias_kv=True)


class OtherKeys(Attending):
    def make(self):
        self.part = nn.MultiheadAttention(16, 2, kdim=8, vdim=8, batch_first=True)

    def odd(self, x):
        return self.part(x, x[..., :8], x[..., 8:])[0]


class Padded(Odd):
    """Zeros are concatenated: to the graph they have no channels."""

    def odd(self, x):
        return torch.cat([x[..., :12], x.new_zeros(*x.shape[:-1], 4)], -1)


class Single(nn.Module):
    """A module that accepts float32 alone."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))

    def forward(self, x):
        if x.dtype is not torch.float32:
            raise TypeError("float32 only")
        return x * self.scale


class OfSingle(Odd):
    def make(self):
        self.part = Single()

    def odd(self, x):
        return self.part(x)


class SingleHere(Odd):
    """The model itself accepts float32 alone."""

    def odd(self, x):
        if x.dtype is not torch.float32:
            raise TypeError("float32 only")
        return x.flip(-1)


class Experts(Odd):
    """A product in groups, which has no version for float64."""

    def make(self):
        self.part = nn.Parameter(torch.randn(2, 16, 16))

    def odd(self, x):
        rows = x.reshape(-1, 16)
        ends = torch.tensor([4, len(rows)], dtype=torch.int32)
        return torch._grouped_mm(rows.bfloat16(), self.part.bfloat16(), offs=ends).to(x.dtype).reshape(x.shape)


class Quantised(Odd):
    def make(self):
        linear = nn.Sequential(nn.Linear(16, 16))
        self.part = torch.ao.quantization.quantize_dynamic(linear, {nn.Linear}, dtype=torch.qint8)

    def odd(self, x):
        return self.part(x)


class Complex(Odd):
    def make(self):
        self.part, self.back = (nn.Linear(16, 16, dtype=torch.cfloat) for _ in range(2))

    def odd(self, x):
        return self.back(self.part(x.to(torch.cfloat))).abs()


class Half(Odd):
    """A layer in bfloat16, with casts."""

    def make(self):
        self.part = nn.Linear(16, 16).bfloat16()

    def odd(self, x):
        return self.part(x.bfloat16()).flip(-1).float()


class Wide(Odd):
    """Float64 weights, and a float32 tensor that no module owns."""

    def __init__(self):
        super().__init__()
        self.double()
        self.table = torch.randn(16, 16)

    def odd(self, x):
        return x @ self.table.to(x.dtype)


class Plain(Odd):
    """A float32 tensor that no module owns."""

    def make(self):
        self.table = torch.randn(16, 16)

    def odd(self, x):
        return x @ self.table
