"""Gradients that expose wrong variants of cautious AdamW, and those variants.

The variants are mistakes of published implementations, or of a possible rewrite. `step` is written operation by
operation in float64, so that each variant is one line.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

BETAS = (0.9, 0.95)
LR = 1e-2
DECAY = 0.1
MUTANTS = (
    "agreement includes zero",
    "mask from the momentum before",
    "mask from momentum alone",
    "mask inverted",
    "not normalised",
    "normalised by numel / (sum + 1)",
    "mean plus floor",
    "floor of 1e-8",
    "mean of each row",
    "eps before the correction of v",
    "eps inside the root",
    "first moment not corrected",
    "second moment not corrected",
    "mask kept in the momentum",
    "decay after the update",
    "decay in the gradient",
    "decay masked",
)


@dataclass(frozen=True)
class Scenario:
    """A tensor's shape, its gradient at each step, and epsilon."""

    shape: tuple[int, ...]
    gradient: object
    steps: int = 50
    eps: float = 1e-8

    def gradients(self, generator):
        for step in range(self.steps):
            yield self.gradient(torch.randn(self.shape, generator=generator, dtype=torch.float64), step)


def sparse_rows(noise, step):
    """Two rows of forty have a gradient, others at each step."""
    rows = torch.zeros(noise.shape[0], 1, dtype=noise.dtype)
    rows[[step % noise.shape[0], (7 * step + 3) % noise.shape[0]]] = 1.0
    return noise * rows


def one_hot(noise, step):
    """One coordinate of four thousand, every third step another."""
    hot = torch.zeros_like(noise)
    hot[17 + step // 3 % 5] = noise[0]
    return hot


SCENARIOS = {
    "A dense": Scenario((16, 12), lambda noise, _: noise),
    "B sparse rows": Scenario((40, 6), sparse_rows),
    "C tiny": Scenario((16, 12), lambda noise, _: noise * 1e-7),
    "D zero at odd steps": Scenario((16, 12), lambda noise, step: noise * (step % 2 == 0)),
    "E one hot": Scenario((4000,), one_hot),
    "F large eps": Scenario((16, 12), lambda noise, _: noise, eps=1e-3),
}


def trajectory(scenario, seed, make, steps=None):
    """Return the parameter after every step of the optimizer `make(params, eps)`."""
    generator = torch.Generator().manual_seed(seed)
    parameter = torch.nn.Parameter(torch.randn(scenario.shape, generator=generator, dtype=torch.float64))
    optimizer = make([parameter], scenario.eps)
    seen = []
    for gradient in Scenario(scenario.shape, scenario.gradient, steps or scenario.steps).gradients(generator):
        parameter.grad = gradient
        optimizer.step()
        seen.append(parameter.detach().clone())
    return torch.stack(seen)


class Written:
    """Plain cautious AdamW of one float64 tensor; `mutant` names a line to make wrong."""

    def __init__(self, parameters, eps, mutant=""):
        (self.p,) = parameters
        self.eps, self.mutant, self.t = eps, mutant, 0
        self.m = torch.zeros_like(self.p.data)
        self.v = torch.zeros_like(self.p.data)

    @torch.no_grad()
    def step(self):
        self.t += 1
        p, g, before = self.p.data, self.p.grad.clone(), self.m.clone()
        if self.mutant == "decay in the gradient":
            g += DECAY * p
        if self.mutant not in {"decay in the gradient", "decay after the update", "decay masked"}:
            p.mul_(1 - LR * DECAY)
        self.m.lerp_(g, 1 - BETAS[0])
        self.v.mul_(BETAS[1]).addcmul_(g, g, value=1 - BETAS[1])
        mask = self.mask(g, before)
        m = self.m * mask
        if self.mutant == "mask kept in the momentum":
            self.m.copy_(m)
        step_size = LR / (1.0 if self.mutant == "first moment not corrected" else 1 - BETAS[0] ** self.t)
        if self.mutant == "decay masked":
            p.mul_(1 - LR * DECAY * mask)
        p.addcdiv_(m, self.divisor(), value=-step_size)
        if self.mutant == "decay after the update":
            p.mul_(1 - LR * DECAY)

    def mask(self, g, before):
        momentum = before if self.mutant == "mask from the momentum before" else self.m
        product = momentum * (momentum if self.mutant == "mask from momentum alone" else g)
        mask = (product >= 0 if self.mutant == "agreement includes zero" else product > 0).double()
        if self.mutant == "mask inverted":
            mask = 1 - mask
        match self.mutant:
            case "not normalised":
                return mask
            case "normalised by numel / (sum + 1)":
                return mask * mask.numel() / (mask.sum() + 1)
            case "mean plus floor":
                return mask / (mask.mean() + 1e-3)
            case "floor of 1e-8":
                return mask / mask.mean().clamp(min=1e-8)
            case "mean of each row":
                return mask / mask.mean(dim=-1, keepdim=True).clamp(min=1e-3)
        return mask / mask.mean().clamp(min=1e-3)

    def divisor(self):
        correction = 1.0 if self.mutant == "second moment not corrected" else 1 - BETAS[1] ** self.t
        match self.mutant:
            case "eps before the correction of v":
                return (self.v.sqrt() + self.eps) / correction**0.5
            case "eps inside the root":
                return (self.v / correction + self.eps**2).sqrt()
        return self.v.sqrt() / correction**0.5 + self.eps
