"""The data of the everyday scripts: small, made from fixed seeds, and the same in every process.

They stand for files on a disk: each script imports what it would read. The weights of "trained" networks are such
files too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

CLASSES, SIDE, SYMBOLS = 4, 8, 24


class Images(Dataset):
    """Noisy pictures (1, 8, 8) of four shapes, with their classes. `flip`: mirrored at random."""

    def __init__(self, count: int, seed: int, *, flip: bool = False) -> None:
        generator = torch.Generator().manual_seed(seed)
        shapes = torch.rand(CLASSES, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(77))
        self.labels = torch.randint(CLASSES, (count,), generator=generator)
        self.images = shapes[self.labels] + 0.5 * torch.randn(count, 1, SIDE, SIDE, generator=generator)
        self.flip = flip

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self.images[index]
        return image.flip(-1) if self.flip and torch.rand(()) < 0.5 else image, self.labels[index]


class Text(Dataset):
    """Windows of a text of 24 symbols: (symbols, the symbols that follow them)."""

    def __init__(self, windows: int, seed: int, length: int = 16) -> None:
        generator = torch.Generator().manual_seed(seed)
        jumps = torch.randint(1, 4, (windows * length + 1,), generator=generator)
        self.symbols, self.windows, self.length = jumps.cumsum(0) % SYMBOLS, windows, length

    def __len__(self) -> int:
        return self.windows

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        piece = self.symbols[index * self.length : (index + 1) * self.length + 1]
        return piece[:-1], piece[1:]


class Stream(IterableDataset):
    """Lines of text that come one after the other, mixed by a shuffle buffer. It has no length."""

    def __init__(self, count: int, seed: int) -> None:
        self.text = Text(count, seed)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        held = []
        for index in range(len(self.text)):
            held.append(self.text[index])
            if len(held) > 16:
                yield held.pop(random.randrange(len(held)))
        yield from held


def table(rows: int, seed: int) -> TensorDataset:
    """Rows of a table: two columns of categories (int64), six of numbers, and the value to predict."""
    generator = torch.Generator().manual_seed(seed)
    categories = torch.randint(10, (rows, 2), generator=generator)
    numbers = torch.randn(rows, 6, generator=generator)
    value = numbers[:, 0] * 2 + categories[:, 0] * 0.3 - (categories[:, 1] > 4) * numbers[:, 1]
    return TensorDataset(categories, numbers, value)


def faces(count: int, seed: int) -> TensorDataset:
    """Real samples for a generator: points (8,) on a bent line."""
    at = torch.rand(count, 1, generator=torch.Generator().manual_seed(seed)) * 3
    return TensorDataset(torch.cat([at.sin(), at.cos(), at, at * at / 9] * 2, 1))


def captioned(count: int, seed: int) -> TensorDataset:
    """Pairs of a picture (64,) and the five words that describe it."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(SYMBOLS, (count, 5), generator=generator)
    meanings = torch.randn(SYMBOLS, 64, generator=torch.Generator().manual_seed(78))
    return TensorDataset(meanings[words].mean(1) + 0.1 * torch.randn(count, 64, generator=generator), words)


def saved_weights(network: nn.Module) -> dict[str, Tensor]:
    """The weights of a network as a file would hold them, trained by somebody else."""
    generator = torch.Generator().manual_seed(79)
    return {
        name: 0.3 * torch.randn(value.shape, generator=generator)
        if value.is_floating_point() and value.dim() > 1
        else value
        for name, value in network.state_dict().items()
    }
