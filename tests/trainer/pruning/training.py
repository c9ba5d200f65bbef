"""Training of small models by every optimizer, with masks or without."""

from __future__ import annotations

import functools

import torch
from torch.nn import functional

from tests.trainer.pruning.models import IMAGES, Small, example
from tolariad.trainer.lr import GroupConfig, LRPolicy, UnifiedLRController
from tolariad.trainer.optim import CautiousAdamW
from tolariad.trainer.optim.owners import Owner
from tolariad.trainer.pruning.verify import find_groups

OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.1),
    "amsgrad": lambda p: torch.optim.AdamW(p, lr=1e-3, amsgrad=True),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3, weight_decay=0.01),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-3),
    "momentum": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, weight_decay=0.01, nesterov=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-4, momentum=0.5, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-3, initial_accumulator_value=0.1),
    "cautious": lambda p: CautiousAdamW(p, lr=1e-3, live_mean=True),
    "cautious_decay": lambda p: CautiousAdamW(p, lr=1e-3, live_mean=True, cautious_weight_decay=True, max_scale=3.0),
    "cautious_off": lambda p: CautiousAdamW(p, lr=1e-3, caution=False),
    "chunked": lambda p: CautiousAdamW(p, lr=1e-3, live_mean=True, foreach=False),
}
CHOSEN = {"a": (1, 4, 7), "b": (0, 5)}


def small(seed, dtype=torch.float32, kind=Small):
    """Return a small network with its groups."""
    torch.manual_seed(seed)
    model = kind().to(dtype)
    return model, find_groups(model, (example(IMAGES),)).groups


@functools.cache
def batch(number, dtype=torch.float32, count=8):
    """Return images and labels; the labels depend on the images."""
    images = example(IMAGES, number, count).to(dtype)
    return images, (images.mean((2, 3)) @ images.new_tensor([1.0, -2.0, 1.5])).mul(9).long().remainder(5)


def step(model, optimizer, number, held=None):
    """Make one step as a loop with masks does, and return the gradient norm before clipping."""
    images, labels = batch(number, next(model.parameters()).dtype)
    optimizer.zero_grad()
    functional.cross_entropy(model(images), labels).backward()
    if held is not None:
        held.zero_gradients()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if held is not None:
        held.hold()
    return float(norm)


def owned(optimizer):
    """Return the optimizer as that of the host."""
    return [Owner("host", optimizer)]


def controlled(optimizer):
    """Return a controller that holds the optimizer's rate."""
    rates = UnifiedLRController({}, steps_per_epoch=10, total_steps=100)
    lr = optimizer.param_groups[0]["lr"]
    rates.register_optimizer("host", optimizer, GroupConfig("all", LRPolicy.CONSTANT, lr))
    return rates


def masked_values(tensors, masks):
    """Return all masked coordinates of these tensors, by path and dimension."""
    return [
        tensors[mask.path].detach().index_select(dim, torch.tensor(indices))
        for mask in masks.masks
        if mask.path in tensors
        for dim, indices in mask.dims.items()
    ]
