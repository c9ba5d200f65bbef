"""Small language models: the next character of a licence, by a perceptron over a window, a GRU, or one attention block.

The text is the repository's own licence and a part of this package's source: both lie beside the code.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from benchmarks.detection.training import Training

_ROOT = Path(__file__).parents[2]
_SIGNS = "\n etaoinshrdlucmfwypvbgkjxqz.,;:()\"'/-_=*0123456789"


@cache
def text(name: str) -> torch.Tensor:
    """Return the text of a file as numbers of its signs; letters are small, other signs a space."""
    known = {sign: at for at, sign in enumerate(_SIGNS)}
    return torch.tensor([known.get(sign, 1) for sign in (_ROOT / name).read_text(encoding="utf-8").lower()])


class Windowed(nn.Module):
    """A perceptron over embeddings of the last eight signs."""

    reach = 8

    def __init__(self, signs: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(signs, 16)
        self.body = nn.Sequential(nn.Linear(16 * self.reach, width), nn.ReLU(), nn.Linear(width, signs))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        shown = self.embed(given).unfold(1, self.reach, 1).transpose(2, 3).flatten(2)
        return self.body(shown)


class Recurrent(nn.Module):
    """A GRU."""

    reach = 1

    def __init__(self, signs: int, width: int) -> None:
        super().__init__()
        self.embed, self.cell = nn.Embedding(signs, 24), nn.GRU(24, width, batch_first=True)
        self.head = nn.Linear(width, signs)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(self.embed(given))[0])


class Attending(nn.Module):
    """One pre-norm block of causal attention, with positions."""

    reach = 1

    def __init__(self, signs: int, width: int) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(signs, width), nn.Embedding(128, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.body = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.head = nn.Linear(width, signs)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        shown = self.embed(given) + self.places(torch.arange(given.shape[1]))
        batch, length, width = shown.shape
        asked, known, held = (
            one.view(batch, length, 2, width // 2).transpose(1, 2)
            for one in self.mixed(self.first(shown)).chunk(3, dim=2)
        )
        found = functional.scaled_dot_product_attention(asked, known, held, is_causal=True)
        shown = shown + self.out(found.transpose(1, 2).flatten(2))
        return self.head(shown + self.body(self.second(shown)))


class Language(Training):
    """A language model of one of the three kinds. `length`: signs of a sample."""

    steps = 1000
    epoch = 400
    change = 640
    rate = 5e-3
    size = 8
    length = 24
    kind = Windowed
    source = "LICENSE"
    width = 48

    def network(self) -> nn.Module:
        return self.kind(len(_SIGNS), self.width)

    def samples(self, at: int, source: torch.Tensor, size: int, length: int) -> torch.Tensor:
        begin = self.rows(at, len(source) - length - 1, size)
        return source[begin[:, None] + torch.arange(length + 1)]

    def shown(self, at: int) -> torch.Tensor:
        """Return the samples of a position: (size, length + 1)."""
        return self.samples(at, text(self.source)[:-2000], self.size, self.length)

    def cost(self, given: torch.Tensor, target: torch.Tensor, at: int) -> torch.Tensor:
        found = self.model(given)
        return functional.cross_entropy(found.flatten(0, 1), target[:, self.model.reach - 1 :].flatten())

    def loss(self, at: int) -> torch.Tensor:
        shown = self.shown(at)
        given, target = self.spoilt(at, (shown[:, :-1], shown[:, 1:]))
        return self.cost(given, target, at)

    @torch.no_grad()
    def held(self) -> float:
        self.model.eval()
        shown = text(self.source)[-2000:][: 78 * 25].view(-1, 25)
        found = float(self.cost(shown[:, :-1], shown[:, 1:], -1))
        self.model.train()
        return found
