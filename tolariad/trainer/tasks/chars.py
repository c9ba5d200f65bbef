"""A character-level language model. Its text ships with Python: the topics of the built-in help.

A small transformer predicts the next byte at each position of a window. Promise: the last tenth of the text is always
the validation data.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from tolariad.trainer.errors import SetupRefused

if TYPE_CHECKING:
    from tolariad.core.calc.settings.model import Settings

_WINDOW: Final = 64
_TEXT_BYTES: Final = 200_000
_VALIDATION_SHARE: Final = 10
_VOCABULARY: Final = 128
_WIDTH: Final = 64
_HEADS: Final = 4
_LAYERS: Final = 2
_DROPOUT: Final = 0.1


def read_text() -> Tensor:
    """Return the text as values below 128, int64. Raises SetupRefused if this Python does not contain it."""
    path = Path(sysconfig.get_path("stdlib")) / "pydoc_data" / "topics.py"
    if not path.is_file():
        raise SetupRefused(f"the task `chars` needs {path}, which this Python does not contain; use another task")
    data = path.read_bytes()[:_TEXT_BYTES]
    return torch.frombuffer(bytearray(byte & 0x7F for byte in data), dtype=torch.uint8).long()


class Chars:
    """The task `chars`. A batch is (inputs, targets), both (n, 64) int64; targets are shifted by one character."""

    def __init__(self) -> None:
        text = read_text()
        windows = (len(text) - 1) // _WINDOW
        end = windows * _WINDOW
        inputs, targets = text[:end].view(windows, _WINDOW), text[1 : end + 1].view(windows, _WINDOW)
        kept = windows - windows // _VALIDATION_SHARE
        self._train = (inputs[:kept], targets[:kept])
        self._validation = (inputs[kept:], targets[kept:])

    def model(self, cfg: Settings) -> nn.Module:  # noqa: ARG002 - the protocol's signature
        """Return a transformer of 2 layers, 64 wide."""
        return CharacterModel()

    def train_data(self, cfg: Settings) -> Any:  # noqa: ARG002
        """Return windows that do not overlap."""
        return self._train

    def val_data(self, cfg: Settings) -> Any:  # noqa: ARG002
        """Return the windows of the last tenth of the text."""
        return self._validation

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean cross-entropy a character, in nats."""
        inputs, targets = batch
        return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, tuple[Any, int]]:
        """Return the sums of the loss and of correctly predicted characters."""
        inputs, targets = batch
        logits, wanted = model(inputs).flatten(0, 1), targets.flatten()
        loss = functional.cross_entropy(logits, wanted, reduction="sum")
        return {"loss": (loss, len(wanted)), "accuracy": ((logits.argmax(1) == wanted).sum(), len(wanted))}


class CharacterModel(nn.Module):
    """Characters (n, 64) int64 to logits (n, 64, 128). Input and output embedding are tied."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(_VOCABULARY, _WIDTH)
        self.places = nn.Parameter(torch.zeros(_WINDOW, _WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(_LAYERS)))
        self.norm = nn.LayerNorm(_WIDTH)
        self.head = nn.Linear(_WIDTH, _VOCABULARY, bias=False)
        nn.init.normal_(self.characters.weight, std=0.02)
        self.head.weight = self.characters.weight

    def forward(self, characters: Tensor) -> Tensor:
        """Return the logits of the character after each position."""
        hidden = self.characters(characters) + self.places[: characters.shape[1]]
        logits: Tensor = self.head(self.norm(self.blocks(functional.dropout(hidden, _DROPOUT, self.training))))
        return logits


class Block(nn.Module):
    """Causal attention and a feed-forward layer, each on a normalised residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(_WIDTH)
        self.attention = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.mixed = nn.Linear(_WIDTH, _WIDTH)
        self.norm_2 = nn.LayerNorm(_WIDTH)
        self.feed_forward = nn.Sequential(
            nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(), nn.Linear(4 * _WIDTH, _WIDTH), nn.Dropout(_DROPOUT)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Map (n, t, 64) to the same shape."""
        n, t, width = hidden.shape
        query, key, value = (
            part.view(n, t, _HEADS, width // _HEADS).transpose(1, 2)
            for part in self.attention(self.norm_1(hidden)).split(width, 2)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.mixed(mixed.transpose(1, 2).reshape(n, t, width))
        out: Tensor = hidden + self.feed_forward(self.norm_2(hidden))
        return out
