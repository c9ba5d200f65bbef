"""Unusual parameters: views, scalars, tied, unused, frozen, sparse, complex, of every float dtype."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, SparseAdam

from tests.trainer.odd_models.harness import RATE, WIDTH, Batch, Odd, squared_error, words


class WithScalar(nn.Module):
    """A linear layer and a parameter of one element, of the given shape."""

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.net = nn.Linear(WIDTH, 1)
        self.scalar = nn.Parameter(torch.full(shape, 0.5))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs)


class Tied(nn.Module):
    """One weight for the first and, transposed, for the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.outer.weight = self.inner.weight

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.linear(self.outer(self.inner(inputs)).tanh(), self.inner.weight.t()).mean(1, keepdim=True)


class UsedTwice(nn.Module):
    """The same layer twice in a pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.layer(self.layer(inputs).relu()))


class Pieces(nn.Module):
    """Two layers whose weights are parts of one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Parameter(torch.randn(WIDTH * WIDTH + WIDTH) / WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        inner, outer = self.flat.split([WIDTH * WIDTH, WIDTH])
        return (inputs @ inner.view(WIDTH, WIDTH).t()).tanh() @ outer.unsqueeze(1)


class Complex(nn.Module):
    """A complex weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, 1, dtype=torch.complex64))

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs.to(torch.complex64) @ self.weight).abs()


class PartlyUnused(nn.Module):
    """A branch without influence on the loss, and one that only every second batch uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.unused = (nn.Linear(WIDTH, 1) for _ in range(3))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.first(inputs) if inputs[0, 0] > 0 else self.second(inputs)


class Words(nn.Module):
    """Embeddings, averaged, then a layer."""

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.embedding, self.head = embedding, nn.Linear(4, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        found = self.embedding(inputs)
        return self.head(found if found.dim() == 2 else found.mean(1))


class OfItsOwnKind(Tensor):
    """A tensor subclass, as libraries define them."""


def own_kind() -> nn.Module:
    model = nn.Linear(WIDTH, 1)
    model.weight = nn.Parameter(model.weight.detach().as_subclass(OfItsOwnKind))  # type: ignore[arg-type]
    return model


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
    model[0].requires_grad_(False)
    return model


def freeze_first(model: nn.Sequential) -> None:
    """From the first step on."""
    model[0].requires_grad_(False)


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))


def convolution() -> nn.Module:
    layer = nn.Conv2d(1, 4, 2).to(memory_format=torch.channels_last)
    return nn.Sequential(nn.Unflatten(1, (1, 2, WIDTH // 2)), layer, nn.Flatten(), nn.LazyLinear(1))


def made_convolution() -> nn.Module:
    model = convolution()
    model(torch.zeros(2, WIDTH))
    return model


def in_double(model: nn.Module, batch: Batch) -> Tensor:
    inputs, targets = batch
    return functional.mse_loss(model(inputs.double()), targets.double())


def in_bfloat16(model: nn.Module, batch: Batch) -> Tensor:
    inputs, targets = batch
    return functional.mse_loss(model(inputs.bfloat16()).float(), targets)


def plus_scalar(model: WithScalar, batch: Batch) -> Tensor:
    """The scalar is a leaf: the gradient of the loss may become its gradient."""
    return squared_error(model, batch) + model.scalar


def plus_view(model: WithScalar, batch: Batch) -> Tensor:
    """It enters through a view."""
    return squared_error(model, batch) + model.scalar.squeeze()


def plus_expanded(model: WithScalar, batch: Batch) -> Tensor:
    return squared_error(model, batch) + model.scalar.expand(3, 1).sum()


def sparse_and_dense(model: Words) -> Optimizer:
    """SparseAdam takes no dense gradients."""
    return SparseAdam(model.parameters(), lr=RATE)


class OnlyWords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 1, sparse=True)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.embedding(inputs).mean(1)


MODELS = (
    Odd("a scalar that enters through a view", lambda: WithScalar((1,)), plus_view),
    Odd("a scalar that enters as it is", WithScalar, plus_scalar),
    Odd("a scalar that enters expanded", lambda: WithScalar((1,)), plus_expanded),
    Odd("a scalar under Adam", WithScalar, plus_scalar, lambda m: Adam(m.parameters(), lr=RATE)),
    Odd("a temperature without dimension", WithScalar, lambda m, b: squared_error(m, b) * m.scalar.exp()),
    Odd("a loss that is a parameter alone", WithScalar, lambda m, _: m.scalar, clip=None),
    Odd("a loss of shape (1,)", WithScalar, lambda m, b: plus_scalar(m, b).reshape(1)),
    Odd("a loss that is a view of the outputs", lambda: nn.Linear(WIDTH, 1), lambda m, b: m(b[0]).view(-1)[0] ** 2),
    Odd("gradients expanded from one number", lambda: nn.Linear(WIDTH, 1), lambda m, _: m.weight.sum() + m.bias.sum()),
    Odd("tied weights, one of them transposed", Tied),
    Odd("one layer used twice", UsedTwice),
    Odd("one layer used twice, without clipping", UsedTwice, clip=None),
    Odd("layers that are parts of one parameter", Pieces),
    Odd("a complex parameter", Complex),
    Odd("a complex parameter under Adam", Complex, optimizer=lambda m: Adam(m.parameters(), lr=RATE)),
    Odd("parameters without a gradient", PartlyUnused),
    Odd("a frozen layer", frozen),
    Odd("a layer frozen amid training", two_layers, on_step_end=freeze_first),
    Odd("a tensor subclass", own_kind),
    Odd("channels last", made_convolution),
    Odd("double precision", lambda: two_layers().double(), in_double),
    Odd("bfloat16 parameters", lambda: two_layers().bfloat16(), in_bfloat16),
    Odd(
        "sparse gradients",
        lambda: Words(nn.Embedding(12, 4, sparse=True)),
        optimizer=lambda m: SGD(m.parameters(), lr=RATE),
        clip=None,
        data=words,
    ),
    Odd("sparse gradients under SparseAdam", OnlyWords, optimizer=sparse_and_dense, clip=None, data=words),
    Odd(
        "sparse gradients under Adagrad",
        OnlyWords,
        optimizer=lambda m: Adagrad(m.parameters(), lr=RATE),
        clip=None,
        data=words,
    ),
    Odd("an embedding that renews its rows", lambda: Words(nn.Embedding(12, 4, max_norm=0.7)), data=words),
    Odd("an embedding scaled by frequency", lambda: Words(nn.Embedding(12, 4, scale_grad_by_freq=True)), data=words),
    Odd("a padded embedding", lambda: Words(nn.Embedding(12, 4, padding_idx=3)), data=words),
    Odd("a bag of embeddings", lambda: Words(nn.EmbeddingBag(12, 4, mode="sum")), data=words),
    Odd("a fused optimizer", two_layers, optimizer=lambda m: AdamW(m.parameters(), lr=RATE, fused=True)),
)
