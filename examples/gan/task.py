"""A GAN on the handwritten digits of scikit-learn: two optimizers at two rates, two updates in each step.

The run journals both updates as one step. A kill or a rollback never leaves one of them without the other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

LATENT = 16


class Gan:
    """A generator and a discriminator of images of 8 by 8 pixels, with the non-saturating loss."""

    def model(self, cfg: Any) -> nn.Module:
        """Return both networks as parts of one module. The configuration's `optimizers` have the names of the parts."""
        generator = nn.Sequential(
            nn.Linear(LATENT, 64),
            nn.BatchNorm1d(64),
            nn.ReLU(),
            nn.Linear(64, 128),
            nn.ReLU(),
            nn.Linear(128, 64),
            nn.Sigmoid(),
        )
        discriminator = nn.Sequential(
            nn.Linear(64, 128),
            nn.LeakyReLU(0.2),
            nn.Dropout(0.2),
            nn.Linear(128, 64),
            nn.LeakyReLU(0.2),
            nn.Linear(64, 1),
        )
        return nn.ModuleDict({"generator": generator, "discriminator": discriminator})

    def train_data(self, cfg: Any) -> tuple[Tensor, ...]:
        """Return images (1 437, 64) in float32, from 0 to 1."""
        return (digits()[:1437],)

    def val_data(self, cfg: Any) -> tuple[Tensor, ...]:
        """Return the other 360."""
        return (digits()[1437:],)

    def training_step(self, model: nn.Module, batch: Any, run: Any) -> dict[str, Tensor]:
        """Update the discriminator, then the generator."""
        (real,) = batch
        generator, discriminator = model["generator"], model["discriminator"]
        made = generator(torch.randn(len(real), LATENT, device=real.device))
        told_apart = softplus(-discriminator(real)).mean() + softplus(discriminator(made.detach())).mean()
        run.update("discriminator", told_apart)
        deceived = softplus(-discriminator(made)).mean()
        run.update("generator", deceived)
        return {"loss": told_apart, "generator_loss": deceived}

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, tuple[Any, int]]:
        """Return how many real and how many made images the discriminator takes for real."""
        (real,) = batch
        made = model["generator"](torch.randn(len(real), LATENT, device=real.device))
        taken = {name: (model["discriminator"](images) > 0).sum() for name, images in (("real", real), ("made", made))}
        # Pixels of made images should be as bright, on average, as those of real ones.
        difference = (made.mean(0) - real.mean(0)).abs().mean() * len(real)
        return {**{name: (count, len(real)) for name, count in taken.items()}, "difference": (difference, len(real))}


def digits() -> Tensor:
    """Return the images in the order of the data set."""
    from sklearn.datasets import load_digits

    return torch.from_numpy(load_digits().data).float() / 16
