"""Tasks with auxiliary losses of seeds, which share the first layer with the host."""

from __future__ import annotations

import torch

from tests.trainer.tasks.drawn import Clipped
from tests.trainer.tasks.seeded import Seeded
from tolariad.trainer.gradients import SeedGradientInfo
from tolariad.trainer.seeds import slots_of


class Auxiliary(Seeded):
    """Each seed has a loss of its own, which wants the opposite of the host in many steps."""

    def seed_losses(self, model, batch):
        inputs, _ = batch
        hidden = model.first(inputs)
        return [
            SeedGradientInfo(name, (slot.seed(hidden) + 3 * hidden).square().mean(), len(inputs), slot.stage)
            for name, slot in slots_of(model).items()
            if slot.seed is not None
        ]


class Poisoned(Auxiliary):
    """The loss of one seed is not finite in some steps, which only the data decides."""

    def seed_losses(self, model, batch):
        infos = super().seed_losses(model, batch)
        bad = torch.where(batch[0][0, 0] > 0.5, torch.nan, 1.0)
        return [
            SeedGradientInfo(
                one.seed_id, one.loss * bad if one.seed_id == "inner" else one.loss, one.batch_size, one.stage
            )
            for one in infos
        ]


class Clipping(Clipped, Auxiliary):
    """It clips by itself."""


class Stranger(Auxiliary):
    """It names a slot that the model does not have."""

    def seed_losses(self, model, batch):
        return [SeedGradientInfo("nobody", model(batch[0]).square().mean(), 5, 3)]


class Numbers(Auxiliary):
    """It returns losses instead of what they are of."""

    def seed_losses(self, model, batch):
        return {name: model(batch[0]).sum() for name in ("inner", "outer")}
