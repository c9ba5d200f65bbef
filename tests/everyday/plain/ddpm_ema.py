"""A diffusion model: noise is added and predicted, and a moving average of the weights makes the samples."""

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

from tests.everyday.datasets import faces

EPOCHS, TIMES = 2, 20


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.times = nn.Embedding(TIMES, 16)
        self.body = nn.Sequential(nn.Linear(8 + 16, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 8))

    def forward(self, x, t):
        return self.body(torch.cat([x, self.times(t)], 1))


kept = torch.linspace(0.999, 0.8, TIMES).cumprod(0)


@torch.no_grad()
def sampled(network, count):
    x = torch.randn(count, 8)
    for t in reversed(range(TIMES)):
        noise = network(x, torch.full((count,), t))
        clean = (x - (1 - kept[t]).sqrt() * noise) / kept[t].sqrt()
        x = kept[t - 1].sqrt() * clean + (1 - kept[t - 1]).sqrt() * torch.randn_like(x) if t else clean
    return x


torch.manual_seed(0)
train_loader = DataLoader(faces(256, seed=1), batch_size=16, shuffle=True)
model = Denoiser()
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

for epoch in range(1, EPOCHS + 1):
    total = 0.0
    for (x,) in train_loader:
        t, noise = torch.randint(TIMES, (len(x),)), torch.randn_like(x)
        noisy = kept[t, None].sqrt() * x + (1 - kept[t, None]).sqrt() * noise
        loss = mse_loss(model(noisy, t), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update_parameters(model)
        total += loss.item()
    print(f"epoch {epoch}: loss {total / len(train_loader):.3f}, mean of samples {sampled(ema, 64).mean():.3f}")

torch.save(model.state_dict(), "model.pt")
torch.save(ema.state_dict(), "ema.pt")
