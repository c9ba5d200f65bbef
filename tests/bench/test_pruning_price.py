"""The price of masks in a step, and what compaction saves: the digits CNN with half of its channels, one torch thread.

Times are of the thread, so that other programs on the cores count little; medians of interleaved steps.
"""

from __future__ import annotations

import copy
import statistics
import time

import pytest
import torch
from torch.nn import functional

from tests.trainer.pruning.training import controlled, owned
from tolariad.core.calc.settings.model import Settings
from tolariad.trainer.pruning.compaction import compact, sizes, try_compaction
from tolariad.trainer.pruning.masks import apply_masks, masks_of
from tolariad.trainer.pruning.plan import plan_of
from tolariad.trainer.pruning.verify import find_groups
from tolariad.trainer.tasks.digits import Digits

STEPS = 150
# The batch at which a step's arithmetic outweighs the calls of torch, which no pruning makes fewer.
LARGE = 256
# Of a step of 20 ms.
SHARE_MAX, STEP_S = 0.02, 0.02


def step(model, optimizer, images, labels, held=None):
    """Return the thread's seconds for one step."""
    started = time.thread_time()
    optimizer.zero_grad()
    functional.cross_entropy(model(images), labels).backward()
    if held is not None:
        held.zero_gradients()
    optimizer.step()
    if held is not None:
        held.hold()
    return time.thread_time() - started


@pytest.fixture
def three():
    """The CNN as it is, with half of its channels masked, and without them; each with its optimizer."""
    torch.manual_seed(0)
    task, settings = Digits(), Settings(task="digits", task_options={"model": "cnn"})
    images, labels = task.train_data(settings)
    whole = task.model(settings)
    groups = find_groups(whole, (images[:4],)).groups
    masks = masks_of(whole, groups, {group.name: range(0, group.width, 2) for group in groups})
    models = [whole, copy.deepcopy(whole), copy.deepcopy(whole)]
    optimizers = [torch.optim.AdamW(model.parameters()) for model in models]
    for model, optimizer in zip(models, optimizers, strict=True):
        step(model, optimizer, images[:64], labels[:64])
    held = [None, *(apply_masks(models[n], masks, owned(optimizers[n])) for n in (1, 2))]
    before = sizes(models[2], owned(optimizers[2]))
    plan = plan_of(whole, groups, masks.units, (images[:64],))
    try_compaction(models[2], plan, (images[:64],))
    compact(models[2], plan, owned(optimizers[2]), rates=controlled(optimizers[2]))
    after = sizes(models[2], owned(optimizers[2]))
    print(f"\nparameters {before[0]} -> {after[0]}, bytes {before[1]} -> {after[1]}")
    return (images, labels), list(zip(models, optimizers, [*held[:2], None], strict=True))


@pytest.mark.bench
def test_half_of_the_channels_make_a_step_shorter(three):
    """Aim: 1.4 times. It is reached where a step is arithmetic; at 64 images half of a step is calls."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    (images, labels), kinds = three
    print(f"{'batch':>6s}{'whole ms':>10s}{'masked ms':>11s}{'compacted ms':>14s}{'ratio':>8s}")
    ratios = {}
    try:
        for batch in (64, LARGE, 512):
            times = [[], [], []]
            for _ in range(STEPS):
                for found, (model, optimizer, held) in zip(times, kinds, strict=True):
                    found.append(step(model, optimizer, images[:batch], labels[:batch], held))
            whole, masked, small = (statistics.median(found) * 1e3 for found in times)
            print(f"{batch:6d}{whole:10.2f}{masked:11.2f}{small:14.2f}{whole / small:8.2f}")
            ratios[batch] = whole / small
    finally:
        torch.set_num_threads(before)

    whole, masked, compacted = (sum(one.numel() for one in model.parameters()) for model, _, _ in kinds)
    assert compacted < whole == masked
    assert ratios[LARGE] > 1.0


@pytest.mark.bench
def test_holding_masks_costs_under_two_percent_of_a_step(three):
    """Both calls of a step, against a step of 20 ms."""
    _, ((_, _, _), (_, _, held), _) = three
    started = time.thread_time()
    for _ in range(2000):
        held.zero_gradients()
        held.hold()
    each = (time.thread_time() - started) / 2000
    count = len(held.masks.masks)
    print(f"\nholding the masks of {count} parameters: {each * 1e6:.0f} us, {each / STEP_S:.2%} of 20 ms")
    assert count > 0
    assert each < SHARE_MAX * STEP_S
