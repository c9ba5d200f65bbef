"""A language model like GPT-2, and a task that trains it on drawn tokens. Its options are the task's `task_options`.

Faults happen once: the file `once` says that there was one. `fault: nan` makes one loss NaN, `fault: memory` asks for
more memory than there is. `holds`: the share of the device's free memory that the process takes at its start.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional


class Size(NamedTuple):
    """The sizes of a model. The default is GPT-2's small one: 124 million parameters."""

    layers: int = 12
    heads: int = 12
    width: int = 768
    context: int = 1024
    vocabulary: int = 50304
    dropout: float = 0.0

    @classmethod
    def of(cls, options: dict[str, Any]) -> Size:
        """Return the sizes that these options name."""
        return cls(**{name: options[name] for name in cls._fields if name in options})


class Block(nn.Module):
    """Attention and a perceptron, each after a norm."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, self.dropout = size.heads, size.dropout
        self.first, self.second = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.attend, self.project = nn.Linear(size.width, 3 * size.width), nn.Linear(size.width, size.width)
        self.perceptron = nn.Sequential(
            nn.Linear(size.width, 4 * size.width), nn.GELU(), nn.Linear(4 * size.width, size.width)
        )
        self.drop = nn.Dropout(size.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.attend(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        x = x + self.drop(self.project(seen.transpose(1, 2).reshape(batch, length, width)))
        return x + self.drop(self.perceptron(self.second(x)))


class Gpt(nn.Module):
    """Tokens of shape (batch, length), int64, to logits of shape (batch, length, vocabulary)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.places = nn.Embedding(size.context, size.width)
        self.blocks = nn.Sequential(*(Block(size) for _ in range(size.layers)))
        self.last, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, size.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.last(self.blocks(self.tokens(tokens) + self.places(places))))


def rows(size: Size, count: int) -> torch.Tensor:
    """Return so many rows of tokens, of one more than the context."""
    draw = torch.Generator().manual_seed(11)
    return torch.randint(size.vocabulary, (count, size.context + 1), generator=draw)


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Return the loss of predicting each next token."""
    return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


class Task:
    """For `tolariad run tests/gpu/gpt.py:Task`. `task_options`: sizes, `rows`, and a fault."""

    def __init__(self) -> None:
        self.calls = 0
        self.held: Any = None

    def model(self, cfg: Any) -> nn.Module:
        self.options = cfg.task_options
        self.size = Size.of(self.options)
        self.device = torch.device(cfg.device)
        if share := self.options.get("holds", 0.0):
            self.held = _hold(self.device, share)
        return Gpt(self.size)

    def train_data(self, cfg: Any) -> tuple[torch.Tensor, ...]:
        return (rows(self.size, self.options["rows"]),)

    def val_data(self, cfg: Any) -> tuple[torch.Tensor, ...]:
        return (rows(self.size, 4),)

    def optimizer(self, model: nn.Module, cfg: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=3e-4)

    def loss(self, model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        self.calls += 1
        loss = loss_of(model, batch[0])
        return self._faulty(loss) if self.calls == self.options.get("at") else loss

    def evaluate(self, model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return loss_of(model, batch[0])

    def _faulty(self, loss: torch.Tensor) -> torch.Tensor:
        once = Path(self.options["once"])
        if once.exists():
            return loss
        once.touch()
        if self.options["fault"] == "nan":
            return loss * float("nan")
        if self.device.type == "cuda":
            _hold(self.device, 4.0)
        raise torch.OutOfMemoryError("CUDA out of memory (there is no device: this one is made up)")


def _hold(device: torch.device, share: float) -> Any:
    """Take this share of the device's free memory. Raises torch.OutOfMemoryError."""
    if device.type != "cuda":
        return bytearray(int(share * 1e8))
    return torch.empty(int(share * torch.cuda.mem_get_info(device)[0]), dtype=torch.uint8, device=device)
