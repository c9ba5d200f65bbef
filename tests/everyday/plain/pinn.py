"""A network that obeys a differential equation: points drawn anew in each step, a loss of second derivatives, Adam."""

import math

import torch
from torch import nn

STEPS, POINTS = 32, 32


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

for step in range(1, STEPS + 1):
    inside, outside = residual(model, torch.rand(POINTS, 1)).pow(2).mean(), model(ends).pow(2).mean()
    loss = inside + 100 * outside
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 8 == 0:
        print(f"step {step}: inside {inside.item():.3f}, at the ends {outside.item():.5f}")

torch.save(model.state_dict(), "model.pt")
