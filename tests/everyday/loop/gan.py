"""A GAN: two networks, two optimizers at two rates, two updates for each batch."""

import torch
from torch import nn
from torch.nn.functional import softplus
from torch.utils.data import DataLoader

from tests.everyday.datasets import faces
from tolariad import Tolaria

EPOCHS, LATENT = 4, 4

torch.manual_seed(0)
train_loader = DataLoader(faces(256, seed=1), batch_size=32, shuffle=True)
generator = nn.Sequential(nn.Linear(LATENT, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))
discriminator = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Dropout(0.2), nn.Linear(32, 1))
g_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=4e-3, betas=(0.5, 0.999))
model = nn.ModuleDict({"generator": generator, "discriminator": discriminator})
optimizers = {"generator": g_optimizer, "discriminator": d_optimizer}
config = {"rng_seed": 0, "checkpoint_interval_epochs": 1}
run = Tolaria({"tolaria": config}, run_dir="runs/gan").run(model, optimizers, train_loader)

for epoch in run.epochs(EPOCHS):
    for (real,) in run.batches():
        made = generator(torch.randn(len(real), LATENT))
        d_loss = softplus(-discriminator(real)).mean() + softplus(discriminator(made.detach())).mean()
        run.update("discriminator", d_loss)
        g_loss = softplus(-discriminator(made)).mean()
        run.update("generator", g_loss)
        run.stepped(loss=d_loss, generator_loss=g_loss)
    print(f"epoch {epoch}: discriminator {d_loss.item():.3f}, generator {g_loss.item():.3f}")

torch.save(generator.state_dict(), "generator.pt")
torch.save(discriminator.state_dict(), "discriminator.pt")
