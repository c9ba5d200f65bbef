"""Tasks that compute on the device of the batch, and read nothing of it: a loop of torch's would not wait either."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from tolariad.trainer.optim import CautiousAdamW

WIDTH, CLASSES = 6, 3


class Plain:
    """Dropout and batch norm: draws and buffers on the device."""

    def model(self, cfg):
        torch.manual_seed(1)
        drop = nn.Dropout(cfg.task_options.get("dropout", 0.3))
        return nn.Sequential(nn.Linear(WIDTH, 12), nn.BatchNorm1d(12), nn.ReLU(), drop, nn.Linear(12, CLASSES))

    def train_data(self, cfg):
        draw = torch.Generator().manual_seed(2)
        return torch.randn(40, WIDTH, generator=draw), torch.randint(CLASSES, (40,), generator=draw)

    def val_data(self, cfg):
        return tuple(one[:16] for one in self.train_data(cfg))

    def optimizer(self, model, cfg):
        return torch.optim.AdamW(model.parameters(), foreach=True)

    def loss(self, model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model, batch):
        return {"loss": functional.cross_entropy(model(batch[0]), batch[1])}


class Measuring(Plain):
    """It returns numbers beside the loss, on both sides."""

    def loss(self, model, batch):
        output = model(batch[0])
        right = (output.argmax(1) == batch[1]).float().mean()
        return {"loss": functional.cross_entropy(output, batch[1]), "accuracy": right, "host": 0.5, "logits": output}


class Clipping(Plain):
    """It clips by itself."""

    def clip_gradients(self, model):
        gradients = [parameter.grad for parameter in model.parameters()]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(one) for one in gradients]))
        for one in gradients:
            one.mul_((0.1 / (norm + 1e-6)).clamp(max=1.0))
        return norm


class Cautious(Plain):
    """An optimizer of this package."""

    def optimizer(self, model, cfg):
        return CautiousAdamW(model.parameters(), weight_decay=0.1)


class Several(Plain):
    """Two updates in each step. A number of the host is its loss."""

    def optimizers(self, model):
        return {
            "first": torch.optim.AdamW(model[0].parameters(), foreach=True),
            "last": torch.optim.SGD([*model[1].parameters(), *model[4].parameters()], momentum=0.9, foreach=True),
        }

    optimizer = None

    def training_step(self, model, batch, run):
        for name in ("first", "last"):
            run.update(name, functional.cross_entropy(model(batch[0]), batch[1]))
        return {"loss": 0.25, "twice": 2.0}
