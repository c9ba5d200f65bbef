"""Plateaus of the rate controller beside torch's ReduceLROnPlateau, epoch by epoch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tolariad.core.calc.learning_rate.schedule import PlateauRule
from tolariad.trainer.lr import GroupConfig, LRPolicy, UnifiedLRController


def sgd():
    return torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1)


METRICS = (1.0, 0.9, 0.95, 0.95, 0.95, 0.5, 0.6, 0.6, 0.6, 0.6, 0.6, 0.4, 0.4, 0.4)


def torchs_rates(warmup_epochs, patience):
    """Return the rate after each epoch; epochs within the warm-up are not passed to torch's scheduler."""
    optimizer = sgd()
    torchs = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=patience)
    rates = []
    for epoch, metric in enumerate(METRICS, 1):
        if epoch >= warmup_epochs:
            torchs.step(metric)
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


@pytest.mark.parametrize("by_call", [True, False], ids=["step", "advance and end_epoch"])
@pytest.mark.parametrize("warmup_epochs", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("patience", [0, 1, 2])
def test_a_plateau_counts_the_same_epochs_however_many_steps_they_have(warmup_epochs, patience, by_call):
    """With one or several steps in an epoch, the rate after each is that of torch's ReduceLROnPlateau."""
    rule = PlateauRule(patience=patience)
    config = GroupConfig("host", LRPolicy.MORPHO_ADAPTIVE, 0.1, warmup_epochs=warmup_epochs, min_lr=0.0, plateau=rule)
    for steps in (1, 2, 3, 7):
        controller = UnifiedLRController({}, steps_per_epoch=steps, total_steps=100 * steps)
        optimizer = sgd()
        controller.register_optimizer("host", optimizer, config)
        found = []
        for epoch, metric in enumerate((*METRICS, 0.0), 1):
            for number in range(steps):
                used = optimizer.param_groups[0]["lr"]
                if by_call:
                    optimizer.step()
                    controller.step(epoch, {"val_loss": metric})
                else:
                    controller.advance(epoch)
                assert controller.lr_history[-1].group_lrs == {"host": used}
                if by_call and number == 0 and epoch > 1:
                    # A call learns from its epoch's number that the one before is over.
                    found.append(optimizer.param_groups[0]["lr"])
            if not by_call:
                controller.end_epoch(epoch, {"val_loss": metric})
                found.append(optimizer.param_groups[0]["lr"])
        # While it warms up the rate is the warm-up's.
        judged = slice(warmup_epochs, len(METRICS))
        assert found[judged] == torchs_rates(warmup_epochs, patience)[judged], f"{steps} steps an epoch"
