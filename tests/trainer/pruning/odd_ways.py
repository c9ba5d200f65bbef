"""Odd parts of a model: functions, branches, hooks, wrappers, outputs; and all odd models with what is refused."""

from __future__ import annotations

import threading

import torch
from torch import nn
from torch.nn import functional

from tests.trainer.pruning import odd_layers as layers
from tests.trainer.pruning.odd import LENGTH, Odd


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
    layers.Recurrent: {READER: "part is recurrent", "part": "is recurrent"},
    layers.Gru: {READER: "part is recurrent", "part": "is recurrent"},
    layers.Elman: {READER: "part is recurrent", "part": "is recurrent"},
    layers.BothWays: {READER: "part is recurrent", "part": "is recurrent"},
    layers.LastState: {READER: "part is recurrent", "part": "is recurrent"},
    layers.Packed: {READER: "part is recurrent", "part": "is recurrent"},
    layers.Cell: {READER: "part is recurrent", "part": "is recurrent"},
    layers.Attending: {READER: "part has heads"},
    layers.ZeroAttending: {READER: "part has heads", "part": "not ordered by queries"},
    layers.OtherKeys: {READER: "part has heads", "part": "has heads"},
    layers.Padded: {READER: ""},
    Einsum: {READER: ""},
    Functional: {},
    Transposed: {READER: ""},
    Own: {READER: "different outputs"},
    layers.OfSingle: {READER: "part fails in float64 (TypeError: float32 only)", "part": "fails in float64"},
    layers.SingleHere: {READER: "different outputs"},
    layers.Experts: {READER: "without them the model fails"},
    layers.Quantised: {READER: ""},
    layers.Complex: {READER: "holds complex128", "part": "holds complex128"},
    layers.Half: {"part": "different outputs"},
    layers.Wide: {READER: "without them the model fails"},
    layers.Plain: {READER: "without them the model fails"},
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
