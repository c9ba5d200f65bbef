"""A GAN: two networks, two optimizers at two rates, two updates for each batch."""

import torch
from torch import nn
from torch.nn.functional import softplus
from torch.utils.data import DataLoader

from tests.everyday.datasets import faces

LATENT = 4


class GanTask:
    def train_data(self, cfg):
        return DataLoader(faces(256, seed=1), batch_size=32, shuffle=True)

    def model(self, cfg):
        generator = nn.Sequential(nn.Linear(LATENT, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))
        discriminator = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Dropout(0.2), nn.Linear(32, 1))
        return nn.ModuleDict({"generator": generator, "discriminator": discriminator})

    def optimizers(self, model):
        g_optimizer = torch.optim.Adam(model["generator"].parameters(), lr=1e-3, betas=(0.5, 0.999))
        d_optimizer = torch.optim.Adam(model["discriminator"].parameters(), lr=4e-3, betas=(0.5, 0.999))
        return {"generator": g_optimizer, "discriminator": d_optimizer}

    def training_step(self, model, batch, run):
        (real,) = batch
        generator, discriminator = model["generator"], model["discriminator"]
        made = generator(torch.randn(len(real), LATENT))
        d_loss = softplus(-discriminator(real)).mean() + softplus(discriminator(made.detach())).mean()
        run.update("discriminator", d_loss)
        g_loss = softplus(-discriminator(made)).mean()
        run.update("generator", g_loss)
        return {"loss": d_loss, "generator_loss": g_loss}
