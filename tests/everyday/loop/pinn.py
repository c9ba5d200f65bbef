"""A network that obeys a differential equation: points drawn anew in each step, a loss of second derivatives, Adam."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader

from tolariad import Tolaria

EPOCHS, STEPS, POINTS = 2, 16, 32


def residual(model, x):
    """u'' = -pi² sin(pi x), with u(0) = u(1) = 0."""
    x.requires_grad_(True)
    u = model(x)
    (first,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    return second + math.pi**2 * torch.sin(math.pi * x)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
ends = torch.tensor([[0.0], [1.0]])
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
config = {"rng_seed": 0, "checkpoint_interval_epochs": 1}
run = Tolaria({"tolaria": config}, run_dir="runs/pinn").run(model, optimizer, DataLoader(range(STEPS), batch_size=None))

for epoch in run.epochs(EPOCHS):
    total = 0.0
    for _ in run.batches():
        inside, outside = residual(model, torch.rand(POINTS, 1)).pow(2).mean(), model(ends).pow(2).mean()
        loss = inside + 100 * outside
        run.step(loss)
        total += loss.item()
    print(f"epoch {epoch}: loss {total / STEPS:.3f}")

torch.save(model.state_dict(), "model.pt")
