"""More trainings that judge: language models, reinforcement, adapters, experts, contrast, noise."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.nn import functional

from benchmarks.detection.language import Language
from benchmarks.detection.training import Digits, Regression, Training, digits, mlp


class Longer(Training):
    """Running parities by a GRU, in sequences that become twice as long."""

    rate = 5e-3
    length = 5

    def network(self) -> nn.Module:
        return nn.ModuleDict({"cell": nn.GRU(1, 24, batch_first=True), "head": nn.Linear(24, 2)})

    def cost(self, bits: torch.Tensor) -> torch.Tensor:
        found = self.model["head"](self.model["cell"](bits[..., None].float())[0])
        return functional.cross_entropy(found.flatten(0, 1), (bits.cumsum(1) % 2).flatten())

    def loss(self, at: int) -> torch.Tensor:
        length = self.length * (2 if self.is_changed(at) else 1)
        return self.cost(torch.randint(2, (self.size, length), generator=self.draws(at)))

    @torch.no_grad()
    def held(self) -> float:
        return float(self.cost(torch.randint(2, (128, self.length), generator=torch.Generator().manual_seed(5))))


class Tied(Language):
    """A language model whose sequences become twice as long, half as many."""

    def shown(self, at: int) -> torch.Tensor:
        from benchmarks.detection.language import text

        if not self.is_changed(at):
            return super().shown(at)
        return self.samples(at, text(self.source)[:-2000], self.size // 2, 2 * self.length)


class Replayed(Regression):
    """Values are learnt from a buffer of states, which is refilled with others at `change`."""

    kept = 400

    def drawn(self, at: int, size: int) -> torch.Tensor:
        draws = torch.Generator().manual_seed(self.seed + (2 if self.is_changed(at) else 1))
        states = torch.randn(self.kept, 4, generator=draws)
        states = states * 1.5 + 1.5 if self.is_changed(at) else states
        return states[self.rows(at, self.kept, size)]


class Rewarded(Regression):
    """Rewards, and so the values to learn, become `times` as large."""

    times = 10.0

    def target(self, inputs: torch.Tensor, at: int) -> torch.Tensor:
        return super().target(inputs, at) * (self.times if self.is_changed(at) else 1.0)


class _Adapter(nn.Module):
    """A linear layer with a low-rank part beside it, which begins at nothing."""

    def __init__(self, fed: int, width: int) -> None:
        super().__init__()
        self.whole, self.down, self.up = nn.Linear(fed, width), nn.Linear(fed, 8, bias=False), nn.Linear(8, width)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.whole(given) + self.up(self.down(given))


class Adapted(Digits):
    """Adapters are attached: the rest is frozen, and turned digits are learnt; the validation has both."""

    def network(self) -> nn.Module:
        return nn.Sequential(_Adapter(64, 64), nn.ReLU(), _Adapter(64, 64), nn.ReLU(), _Adapter(64, 10))

    def before(self, at: int) -> None:
        for one in self.model:
            if isinstance(one, _Adapter):
                one.whole.requires_grad_(not self.is_changed(at))
                one.down.requires_grad_(self.is_changed(at))
                one.up.requires_grad_(self.is_changed(at))

    def inputs(self, images: torch.Tensor, labels: torch.Tensor, at: int) -> torch.Tensor:
        if not self.is_changed(at):
            return images
        turned = images.view(-1, 8, 8).rot90(1, (1, 2)).flatten(1)
        return torch.where(torch.rand(len(images), 1) < 0.5, turned, images)


def _switched(training: Training, made: torch.optim.Optimizer, at: int) -> None:
    """Put the second optimizer in place of the first, once."""
    if at == training.change and type(training.optimizer) is not type(made):
        training.optimizer = made


class Swapped(Digits):
    """Adam gives way to SGD with momentum."""

    def before(self, at: int) -> None:
        if at == self.change:
            _switched(self, torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9), at)


class Weaker(Language):
    """A language model's Adam gives way to RMSprop."""

    def before(self, at: int) -> None:
        if at == self.change:
            _switched(self, torch.optim.RMSprop(self.model.parameters(), lr=2e-3), at)


class _Mixture(nn.Module):
    """Four experts; a router sends each sample to the best one and weighs it."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(64, 4)
        self.experts = nn.ModuleList(mlp(64, 32, 10) for _ in range(4))
        self.balance = torch.zeros(())

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        shares = self.router(given).softmax(1)
        best = shares.argmax(1)
        loads = functional.one_hot(best, 4).float().mean(0)
        self.balance = 4.0 * (loads * shares.mean(0)).sum() - 1.0
        found = torch.stack([one(given) for one in self.experts], 1)
        rows = torch.arange(len(given))
        return found[rows, best] * shares[rows, best, None]


class Experts(Digits):
    """A mixture of experts whose router must spread its load from some step on."""

    weight = 2.0

    def network(self) -> nn.Module:
        return _Mixture()

    def criterion(self, found: torch.Tensor, labels: torch.Tensor, at: int) -> torch.Tensor:
        loss = functional.cross_entropy(found, labels)
        if self.is_changed(at):
            loss = loss + self.weight * self.model.balance
        # A graph that a forward pass left behind cannot be copied.
        self.model.balance = torch.zeros(())
        return loss


class Queued(Training):
    """Contrastive learning with a queue of negatives, which becomes four times as long."""

    rate = 2e-3
    kept = 64

    def network(self) -> nn.Module:
        return mlp(64, 64, 16)

    def begun(self) -> None:
        self.queue = functional.normalize(torch.randn(4 * self.kept, 16), dim=1)

    def cost(self, images: torch.Tensor, negatives: torch.Tensor) -> torch.Tensor:
        one, other = (functional.normalize(self.model(shown), dim=1) for shown in _views(images))
        close = (one * other).sum(1, keepdim=True)
        found = torch.cat((close, one @ negatives.T), 1) / 0.1
        return functional.cross_entropy(found, torch.zeros(len(images), dtype=torch.int64))

    def loss(self, at: int) -> torch.Tensor:
        images = digits()[0][0][self.rows(at, len(digits()[0][0]))]
        return self.cost(images, self.queue[: self.kept * (4 if self.is_changed(at) else 1)])

    def after(self, at: int) -> None:
        with torch.no_grad():
            images = digits()[0][0][self.rows(-at - 1, len(digits()[0][0]))]
            fresh = functional.normalize(self.model(images), dim=1)
            self.queue = torch.cat((fresh, self.queue))[: 4 * self.kept]

    @torch.no_grad()
    def held(self) -> float:
        return float(self.cost(digits()[1][0], self.queue[: self.kept]))

    @torch.no_grad()
    def measure(self) -> float:
        (known, names), _, (asked, right) = digits()
        one, other = (functional.normalize(self.model(part), dim=1) for part in (known, asked))
        return float((names[(other @ one.T).argmax(1)] == right).float().mean())


def _views(images: torch.Tensor) -> Iterable[torch.Tensor]:
    return (images + 0.2 * torch.randn_like(images), images + 0.2 * torch.randn_like(images))


class Denoised(Training):
    """The noise of digits is predicted; the schedule of its size becomes harder."""

    rate = 2e-3

    def network(self) -> nn.Module:
        return mlp(65, 128, 128, 64)

    def cost(self, images: torch.Tensor, sizes: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        found = self.model(torch.cat((images + sizes * noise, sizes), 1))
        return functional.mse_loss(found, noise)

    def loss(self, at: int) -> torch.Tensor:
        images = digits()[0][0][self.rows(at, len(digits()[0][0]))]
        sizes = torch.rand(len(images), 1) * 0.3 + 0.7
        if self.is_changed(at):
            sizes = sizes * 0.15
        return self.cost(images, sizes, torch.randn_like(images))

    @torch.no_grad()
    def held(self) -> float:
        images = digits()[1][0]
        draws = torch.Generator().manual_seed(11)
        sizes = torch.rand(len(images), 1, generator=draws) * 0.9 + 0.1
        return float(self.cost(images, sizes, torch.randn(images.shape, generator=draws)))
