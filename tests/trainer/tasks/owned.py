"""A task whose parts have optimizers of their own: a body and a head."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from tolariad.trainer.lr import controller_of
from tolariad.trainer.optim import OptimizerRebuildCoordinator


class Owned:
    """The loss draws, the body drops out; each part has another class of optimizer, the head twice the rate."""

    def model(self, cfg):
        body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2))
        return nn.ModuleDict({"body": body, "head": nn.Linear(8, 3)})

    def optimizers(self, model):
        return {
            "body": torch.optim.AdamW(model["body"].parameters(), lr=1e-2),
            "head": torch.optim.SGD(model["head"].parameters(), lr=2e-2, momentum=0.9),
        }

    def train_data(self, cfg):
        drawn = torch.randn(40, 6)
        return drawn, drawn[:, :3].argmax(1)

    def val_data(self, cfg):
        return None

    def loss(self, model, batch):
        inputs, targets = batch
        return functional.cross_entropy(model["head"](model["body"](inputs + 0.1 * torch.randn_like(inputs))), targets)

    def evaluate(self, model, batch):
        return {}


class Renamed(Owned):
    def optimizers(self, model):
        return dict(zip(("trunk", "head"), super().optimizers(model).values(), strict=True))


class Shared(Owned):
    def optimizers(self, model):
        return {
            "all": torch.optim.SGD(model.parameters(), lr=0.1),
            "head": torch.optim.SGD(model["head"].parameters(), lr=0.1),
        }


class Forgets(Owned):
    def optimizers(self, model):
        return {"body": super().optimizers(model)["body"]}


class Both(Owned):
    def optimizer(self, model, cfg):
        return torch.optim.SGD(model.parameters(), lr=0.1)


class Listed(Owned):
    def optimizers(self, model):
        return list(super().optimizers(model).values())


class Spaced(Owned):
    def optimizers(self, model):
        return {f"the {name}": one for name, one in super().optimizers(model).items()}


class Writes(Owned):
    """After step 2 it writes the head's rate, and the head's weight without torch's knowledge."""

    def on_step_end(self, model, step):
        if step == 2:
            self.made["head"].param_groups[0]["lr"] = 7.0
        if step in (2, 3, 4, 5):
            model["head"].weight.data.mul_(1.5)

    def optimizers(self, model):
        self.made = super().optimizers(model)
        return self.made


class GrowsParts(Owned):
    """A part gets a layer, the head gets wider, and the model a parameter that belongs to no part."""

    def grow(self, model, change):
        match change.name:
            case "deeper":
                model["body"].append(nn.Linear(8, 8))
            case "wider":
                old, model["head"] = model["head"], nn.Linear(8, change.arguments["classes"])
                with torch.no_grad():
                    model["head"].weight[: len(old.weight)] = old.weight
                model.sizes = [*getattr(model, "sizes", ()), change.arguments["classes"]]
            case "free":
                model.register_parameter("free", nn.Parameter(torch.zeros(2)))


class PlacesItself(GrowsParts):
    """Its `grow` gives the new parameter to the head's optimizer."""

    def optimizers(self, model):
        self.made = super().optimizers(model)
        return self.made

    def grow(self, model, change):
        head = self.made["head"]
        coordinator = OptimizerRebuildCoordinator(head, model, controller_of(head))
        super().grow(model, change)
        held = ("head.weight", "head.bias", "free")
        assert coordinator.rebuild(among={name: model.get_parameter(name) for name in held})
        if change.arguments.get("fails"):
            raise ZeroDivisionError
