"""A diffusion model: noise is added and predicted, and a moving average of the weights makes the samples."""

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

from tests.everyday.datasets import faces

TIMES = 20


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.times = nn.Embedding(TIMES, 16)
        self.body = nn.Sequential(nn.Linear(8 + 16, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 8))

    def forward(self, x, t):
        return self.body(torch.cat([x, self.times(t)], 1))


kept = torch.linspace(0.999, 0.8, TIMES).cumprod(0)


class DiffusionTask:
    def train_data(self, cfg):
        return DataLoader(faces(256, seed=1), batch_size=16, shuffle=True)

    def model(self, cfg):
        model = Denoiser()
        self.ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        return model

    def loss(self, model, batch):
        (x,) = batch
        t, noise = torch.randint(TIMES, (len(x),)), torch.randn_like(x)
        noisy = kept[t, None].sqrt() * x + (1 - kept[t, None]).sqrt() * noise
        return mse_loss(model(noisy, t), noise)

    def on_step_end(self, model, step):
        self.ema.update_parameters(model)

    def state_dict(self):
        return self.ema.state_dict()

    def load_state_dict(self, state):
        self.ema.load_state_dict(state)
