"""A metric of torchmetrics that is logged in training has Lightning's own number at the epoch's end."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import nn

from tolariad.trainer.checkpoints.tree import decode_tree, encode_tree, made
from tolariad.trainer.lightning.logged import Log

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torchmetrics") is None, reason="torchmetrics is missing")
BATCHES, EACH = 10, 4


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        import torchmetrics

        self.sum = torchmetrics.SumMetric()
        self.f1 = torchmetrics.F1Score(task="multiclass", num_classes=3, average="macro")
        self.auroc = torchmetrics.AUROC(task="multiclass", num_classes=3)


def seen() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(2)
    return [
        (torch.randn(EACH, 3, generator=generator), torch.randint(3, (EACH,), generator=generator))
        for _ in range(BATCHES)
    ]


def take(net: Net, log: Log, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Do what a training_step does: call the metrics, and log them."""
    for outputs, targets in batches:
        log.at("training_step", "step")
        net.sum(float(len(targets)))
        net.f1(outputs, targets)
        net.auroc(outputs, targets)
        for name in ("sum", "f1", "auroc"):
            log(name, getattr(net, name), on_step=False, on_epoch=True)


def whole() -> dict[str, float]:
    """Return what each metric says of all batches together."""
    net, outputs, targets = Net(), *(torch.cat(both) for both in zip(*seen(), strict=True))
    net.f1.update(outputs, targets)
    net.auroc.update(outputs, targets)
    return {"sum": 40.0, "f1": float(net.f1.compute()), "auroc": float(net.auroc.compute())}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("at", [0, 1, 7])
def test_the_number_is_that_over_the_epoch_also_after_a_resume_in_its_midst(at):
    """SumMetric gives 40 and not the mean 4; F1 and AUROC are no means over batches. The next epoch begins anew."""
    first, net, log, new = Net(), Net(), Log(), Log()
    take(first, log, seen()[:at])
    tree = encode_tree(log.state(first), "metrics")
    take(first, log, seen()[at : at + 1])
    new.load_state(net, made(decode_tree(*tree), torch.device("cpu")))
    take(net, new, seen()[at:])
    assert new.end_epoch(net) == pytest.approx(whole(), abs=1e-6)
    assert new.state(net) == []
    take(net, new, seen())
    assert new.end_epoch(net) == pytest.approx(whole(), abs=1e-6)
