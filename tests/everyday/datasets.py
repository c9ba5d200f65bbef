"""The data of the everyday scripts: small, made from fixed seeds, and the same in every process.

They stand for files on a disk: each script imports what it would read. The weights of "trained" networks are such
files too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
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


def prepared(path: Path) -> Path:
    """A text as a file of uint16 symbols, which is written if it is not there."""
    if not path.exists():
        half = path.with_suffix(".part")
        np.asarray(Text(64, seed=1).symbols, np.uint16).tofile(half)
        half.replace(path)
    return path


class Cells(Dataset):
    """Noisy pictures (1, 16, 16) of cells, with their masks. `augment`: turned and lit by a generator that it holds."""

    def __init__(self, count: int, seed: int, *, augment: bool = False) -> None:
        drawn = np.random.default_rng(seed)
        places, radii = drawn.uniform(4, 12, (count, 2)), drawn.uniform(2, 5, count)
        distance = ((np.mgrid[:16, :16][None] - places[:, :, None, None]) ** 2).sum(1)
        self.masks = (distance < radii[:, None, None] ** 2).astype(np.float32)[:, None]
        self.images = (self.masks + 0.4 * drawn.standard_normal(self.masks.shape)).astype(np.float32)
        self.generator, self.augment = np.random.default_rng(seed + 1), augment

    def __len__(self) -> int:
        return len(self.masks)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, mask = torch.from_numpy(self.images[index]), torch.from_numpy(self.masks[index])
        if self.augment:
            turns, light = int(self.generator.integers(4)), float(self.generator.uniform(0.8, 1.2))
            image, mask = light * image.rot90(turns, (1, 2)), mask.rot90(turns, (1, 2))
        return image, mask


class Speech(Dataset):
    """Sounds (time, 6) of different lengths, with the symbols (1 to 5) that are spoken in them."""

    def __init__(self, count: int, seed: int) -> None:
        drawn = random.Random(seed)
        generator = torch.Generator().manual_seed(seed)
        tones = torch.randn(6, 6, generator=torch.Generator().manual_seed(80))
        self.spoken = [torch.tensor(drawn.choices(range(1, 6), k=drawn.randint(2, 6))) for _ in range(count)]
        self.sounds = [
            tones[said.repeat_interleave(3)] + 0.3 * torch.randn(3 * len(said), 6, generator=generator)
            for said in self.spoken
        ]

    def __len__(self) -> int:
        return len(self.sounds)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.sounds[index], self.spoken[index]


def neighbours(count: int, seed: int) -> TensorDataset:
    """Pairs of a word (of 200) and one that stands near it in a text."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(200, (count,), generator=generator)
    return TensorDataset(words, (words + torch.randint(1, 5, (count,), generator=generator)) % 200)
