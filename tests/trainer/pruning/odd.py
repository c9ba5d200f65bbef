"""Models with a part that graph or trial cannot handle, between two layers that can be pruned.

Each has `before` (16 channels, read by the odd part or by `into`, which leads to it), and `after` (12 channels), which
the last layer reads. So `after` must be found, whatever stands before it.
"""

from __future__ import annotations

import threading

import torch
from torch import nn
from torch.nn import functional

LENGTH, INPUTS = 5, 8


def example(seed=0, count=3):
    """Return inputs (n, 5, 8)."""
    return torch.randn(count, LENGTH, INPUTS, generator=torch.Generator().manual_seed(seed))


class Odd(nn.Module):
    """`before`, the odd part (16 to 16), `after`, `out`."""

    def __init__(self):
        super().__init__()
        self.before = nn.Linear(INPUTS, 16)
        self.make()
        self.after, self.out = nn.Linear(16, 12), nn.Linear(12, 3)

    def make(self):
        """Make what the odd part needs."""

    def odd(self, x):
        return x

    def forward(self, x):
        return self.out(self.after(self.odd(self.before(x).relu())).relu())


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


class Einsum(Odd):
    def make(self):
        self.part = nn.Linear(16, 16)

    def odd(self, x):
        return torch.einsum("nti,oi->nto", x, self.part.weight)


class Functional(Odd):
    """The weight of one layer is used by a function, scaled, beside the layer."""

    def make(self):
        self.part = nn.Linear(16, 16)

    def odd(self, x):
        return self.part(x) + functional.linear(x, 2.0 * self.part.weight)


class Transposed(Odd):
    """A layer's weight is used once more, transposed."""

    def make(self):
        self.part = nn.Linear(16, 9)

    def odd(self, x):
        return functional.linear(self.part(x), self.part.weight.t())


class FlipOf(torch.autograd.Function):
    """A function of the user's own, with a backward pass for float32 only."""

    @staticmethod
    def forward(ctx, x):
        return x.flip(-1)

    @staticmethod
    def backward(ctx, gradient):
        if gradient.dtype is not torch.float32:
            raise TypeError("float32 only")
        return gradient.flip(-1)


class Own(Odd):
    def odd(self, x):
        return FlipOf.apply(x)


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


class Branching(Odd):
    """Which layer is used depends on the data."""

    def make(self):
        self.part, self.other = nn.Linear(16, 16), nn.Linear(16, 16)

    def odd(self, x):
        return self.other(x) if x.sum() > 1e9 else self.part(x)


class Looping(Odd):
    """It goes round as often as the data say."""

    def odd(self, x):
        while x.norm() > 3:
            x = x / 2
        return x.flip(-1)


class Normed(Odd):
    """A weight that a hook computes before each call; such a model refuses to be copied."""

    def make(self):
        self.part = nn.utils.weight_norm(nn.Linear(16, 16))

    def odd(self, x):
        return self.part(x)


class Parametrised(Odd):
    def make(self):
        self.part = nn.utils.parametrizations.orthogonal(nn.Linear(16, 16))

    def odd(self, x):
        return self.part(x)


class Hooked(Odd):
    """A hook exchanges channels; another one keeps an output, which torch does not copy. A lock cannot be copied."""

    def make(self):
        self.part, self.seen, self.lock = nn.Linear(16, 16), [], threading.Lock()
        self.part.register_forward_hook(lambda module, given, output: output.flip(-1))
        self.part.register_forward_hook(self.keep)

    def keep(self, module, given, output):
        self.seen[:] = [output]

    def odd(self, x):
        return self.part(x)


class Wrapped(nn.Linear):
    def forward(self, x):
        return {"hidden": super().forward(x)}


class Wrapping(Odd):
    """A layer that gives a dict."""

    def make(self):
        self.part = Wrapped(16, 16)

    def odd(self, x):
        return self.part(x)["hidden"]


class Compiled(Odd):
    def make(self):
        self.part = torch.jit.script(nn.Sequential(nn.Linear(16, 16), nn.ReLU()))

    def odd(self, x):
        return self.part(x)


class Checkpointed(Odd):
    """The part is computed without a graph, and again in the backward pass."""

    def make(self):
        self.part = nn.Linear(16, 16)

    def odd(self, x):
        return torch.utils.checkpoint.checkpoint(self.part, x, use_reentrant=True)


class Careful(Odd):
    """It refuses weights as large as random ones are, and takes a root of one."""

    def make(self):
        self.scale = nn.Parameter(torch.ones(16))

    def odd(self, x):
        if self.before.weight.abs().max() > 0.6:
            raise ValueError("the weights have exploded")
        return (x * self.scale.sqrt()).flip(-1)


class Lazy(Odd):
    """A lazy module that no call has reached yet."""

    def make(self):
        self.part, self.other = nn.Linear(16, 16), nn.LazyLinear(7)

    def odd(self, x):
        return self.part(x).flip(-1)


class Empty(Odd):
    """A layer without a channel."""

    def make(self):
        self.part = nn.Linear(16, 0)

    def odd(self, x):
        return x.flip(-1) + self.part(x).sum()


class Bag(Odd):
    """A bag of embeddings, whose gradients are sparse."""

    def make(self):
        self.part = nn.EmbeddingBag(11, 16, sparse=True, mode="sum")

    def odd(self, x):
        return self.part((x.sum(1)[:, :4] > 0).long()) + x.flip(-1).mean(1)


class Volumes(Odd):
    """Convolutions and transposed convolutions of volumes; a grouped one between them."""

    def make(self):
        self.part = nn.Sequential(
            nn.Conv3d(1, 6, 1), nn.ConvTranspose3d(6, 6, 1, groups=2), nn.Conv3d(6, 1, 1), nn.Flatten(2)
        )

    def odd(self, x):
        return self.part(x.reshape(len(x), 1, LENGTH, 4, 4)).reshape(x.shape)


class Out:
    """An output that is no container to torch."""

    def __init__(self, logits):
        self.logits = logits


class Object(Odd):
    def odd(self, x):
        return x.flip(-1)

    def forward(self, x):
        return Out(super().forward(x))


class Infinite(Odd):
    """Outputs of a class that is left out are -inf."""

    def odd(self, x):
        return x.flip(-1)

    def forward(self, x):
        return super().forward(x).masked_fill(torch.tensor([False, True, False]), -torch.inf)


# For each model the modules that must be refused by name, with a part of the reason.
READER = "before"
KINDS = {
    Recurrent: {READER: "part is recurrent", "part": "is recurrent"},
    Gru: {READER: "part is recurrent", "part": "is recurrent"},
    Elman: {READER: "part is recurrent", "part": "is recurrent"},
    BothWays: {READER: "part is recurrent", "part": "is recurrent"},
    LastState: {READER: "part is recurrent", "part": "is recurrent"},
    Packed: {READER: "part is recurrent", "part": "is recurrent"},
    Cell: {READER: "part is recurrent", "part": "is recurrent"},
    Attending: {READER: "part has heads"},
    ZeroAttending: {READER: "part has heads", "part": "not ordered by queries"},
    OtherKeys: {READER: "part has heads", "part": "has heads"},
    Padded: {READER: ""},
    Einsum: {READER: ""},
    Functional: {},
    Transposed: {READER: ""},
    Own: {READER: "different outputs"},
    OfSingle: {READER: "part fails in float64 (TypeError: float32 only)", "part": "fails in float64"},
    SingleHere: {READER: "different outputs"},
    Experts: {READER: "without them the model fails"},
    Quantised: {READER: ""},
    Complex: {READER: "holds complex128", "part": "holds complex128"},
    Half: {"part": "different outputs"},
    Wide: {READER: "without them the model fails"},
    Plain: {READER: "without them the model fails"},
    Branching: {READER: "other may have its channels too", "other": "do not depend on it"},
    Looping: {READER: "different outputs"},
    Normed: {READER: "computes its weight", "part": "computes its weight"},
    Parametrised: {READER: "computes its weight", "part": "computes its weight"},
    Hooked: {"part": "different outputs"},
    Wrapping: {READER: "part gives a dict", "part": "gives a dict"},
    Compiled: {READER: "", "part": "is compiled by torch.jit"},
    Checkpointed: {READER: "", "part": ""},
    Careful: {READER: "different outputs"},
    Lazy: {"part": "different outputs", "other": "do not depend on it"},
    Empty: {READER: ""},
    Bag: {READER: "different outputs"},
    Volumes: {READER: "", "part.1": ""},
    Object: {READER: "different outputs"},
    Infinite: {READER: "different outputs"},
}
