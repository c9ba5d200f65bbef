"""Loops whose optimizers evaluate the loss themselves: LBFGS, Adam with a closure, and SAM, which takes two passes."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.library.loops.programs import configured
from tolariad import Tolaria

EPOCHS, PARTS, EACH = 2, 4, 12


class Sam(torch.optim.Optimizer):
    """Sharpness-aware minimisation as it is usually written: an optimizer around another one, of the same groups."""

    def __init__(self, params, base, rho=0.05, **options):
        super().__init__(params, {"rho": rho, **options})
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups
        self.defaults.update(self.base_optimizer.defaults)

    @torch.no_grad()
    def step(self, closure=None):
        with_grad = torch.enable_grad()(closure)
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in parameters]).norm()
        for p in parameters:
            self.state[p]["old"] = p.data.clone()
            p.add_(p.grad * (self.param_groups[0]["rho"] / (norm + 1e-12)))
        self.zero_grad()
        with_grad()
        for p in parameters:
            p.data = self.state[p]["old"]
        self.base_optimizer.step()


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 1))


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(PARTS, EACH, 6, generator=generator)
    return [(one, one[:, :1] * one[:, 1:2]) for one in inputs]


OPTIMIZERS = {
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.3, max_iter=4, history_size=3),
    "lbfgs_searching": lambda p: torch.optim.LBFGS(p, max_iter=4, line_search_fn="strong_wolfe"),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "sam": lambda p: Sam(p, torch.optim.SGD, lr=0.05, momentum=0.9),
}


def closure_of(model, optimizer, inputs, targets):
    def closure():
        optimizer.zero_grad()
        loss = (model(inputs) - targets).square().mean()
        loss.backward()
        return loss

    return closure


def plain(kind: str) -> tuple[nn.Module, list[float]]:
    """Train without a recorder. Return the model, and the loss of each step before it."""
    model, losses = network(), []
    optimizer = OPTIMIZERS[kind](model.parameters())
    for _ in range(EPOCHS):
        for inputs, targets in batches():
            closure = closure_of(model, optimizer, inputs, targets)
            if kind == "sam":
                losses.append(closure().item())
            found = optimizer.step(closure)
            losses += [found.item()] if found is not None else []
    return model, losses


def recorded(
    run_dir, kind: str, after=lambda step, run: None, given=batches, **options
) -> tuple[nn.Module, list[bool]]:
    """Do the same in a loop that is recorded. Return the model, and what each `step` returned."""
    model, applied = network(), []
    optimizer = OPTIMIZERS[kind](model.parameters())
    data, options = given(), {"learning_rate": {}, **options}
    tolaria = Tolaria(configured(**options), run_dir=run_dir)
    run = tolaria.run(model, optimizer, DataLoader(range(PARTS), batch_size=None))
    for _ in run.epochs(EPOCHS):
        for number in run.batches():
            inputs, targets = data[number]
            closure = closure_of(model, optimizer, inputs, targets)
            loss = (model(inputs) - targets).square().mean() if kind == "sam" else None
            applied.append(run.step(loss, closure=closure))
            after(len(applied), run)
    return model, applied
