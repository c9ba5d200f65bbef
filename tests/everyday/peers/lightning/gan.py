"""A GAN: two networks, two optimizers at two rates, two updates for each batch."""

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn.functional import softplus
from torch.utils.data import DataLoader

from tests.everyday.datasets import faces

EPOCHS, LATENT = 4, 4

torch.manual_seed(0)
train_loader = DataLoader(faces(256, seed=1), batch_size=32, shuffle=True)
generator = nn.Sequential(nn.Linear(LATENT, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))
discriminator = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Dropout(0.2), nn.Linear(32, 1))


class GanModule(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.generator, self.discriminator = generator, discriminator
        self.automatic_optimization = False

    def training_step(self, batch, _):
        g_optimizer, d_optimizer = self.optimizers()
        (real,) = batch
        made = generator(torch.randn(len(real), LATENT))
        d_loss = softplus(-discriminator(real)).mean() + softplus(discriminator(made.detach())).mean()
        d_optimizer.zero_grad()
        self.manual_backward(d_loss)
        d_optimizer.step()
        g_loss = softplus(-discriminator(made)).mean()
        g_optimizer.zero_grad()
        self.manual_backward(g_loss)
        g_optimizer.step()
        self.log_dict({"discriminator": d_loss, "generator": g_loss})

    def configure_optimizers(self):
        g_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
        d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=4e-3, betas=(0.5, 0.999))
        return [g_optimizer, d_optimizer]


checkpoints = ModelCheckpoint("checkpoints", save_last=True)
trainer = lightning.Trainer(max_epochs=EPOCHS, callbacks=[checkpoints])
trainer.fit(GanModule(), train_loader, ckpt_path="last")

torch.save(generator.state_dict(), "generator.pt")
torch.save(discriminator.state_dict(), "discriminator.pt")
