"""A GAN: two networks, two optimizers at two rates, two updates for each batch."""

from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from torch import nn
from torch.nn.functional import softplus
from torch.utils.data import DataLoader

from tests.everyday.datasets import faces

EPOCHS, LATENT = 4, 4

torch.manual_seed(0)
train_loader = DataLoader(faces(256, seed=1), batch_size=32, shuffle=True)
generator = nn.Sequential(nn.Linear(LATENT, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))
discriminator = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Dropout(0.2), nn.Linear(32, 1))
g_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=4e-3, betas=(0.5, 0.999))
saved = len(list(Path("checkpoints").glob("*")))
config = ProjectConfiguration(".", automatic_checkpoint_naming=True, iteration=saved)
accelerator = Accelerator(project_config=config)
generator, discriminator, g_optimizer, d_optimizer, train_loader = accelerator.prepare(
    generator, discriminator, g_optimizer, d_optimizer, train_loader
)
if saved:
    accelerator.load_state()

for epoch in range(saved, EPOCHS):
    for (real,) in train_loader:
        made = generator(torch.randn(len(real), LATENT))
        d_loss = softplus(-discriminator(real)).mean() + softplus(discriminator(made.detach())).mean()
        d_optimizer.zero_grad()
        accelerator.backward(d_loss)
        d_optimizer.step()
        g_loss = softplus(-discriminator(made)).mean()
        g_optimizer.zero_grad()
        accelerator.backward(g_loss)
        g_optimizer.step()
    print(f"epoch {epoch + 1}: discriminator {d_loss.item():.3f}, generator {g_loss.item():.3f}")
    accelerator.save_state()

torch.save(accelerator.unwrap_model(generator).state_dict(), "generator.pt")
torch.save(accelerator.unwrap_model(discriminator).state_dict(), "discriminator.pt")
