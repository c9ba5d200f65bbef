"""Give a model the seeds of exported weights, so that the weights can be loaded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tolariad.core.calc.seeds.stages import Stage
from tolariad.trainer.data.randomness import preserved_rng
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.seeds.places import slots_of
from tolariad.trainer.seeds.registry import find_blueprint

if TYPE_CHECKING:
    from torch import nn


def regrow(model: nn.Module, seeds: str) -> None:
    """Put a seed into each slot that had one, as a permanent part of the model. Its values are still to be loaded.

    `seeds`: the entry of this name in the metadata of a file that `tolaria export-weights` wrote. The model must have
    the slots that it had in the run. Draws from no generator. Raises SetupRefused.
    """
    slots = slots_of(model)
    for one in json.loads(seeds):
        slot = slots.get(one["slot"])
        if slot is None:
            raise SetupRefused(f"the model has no slot {one['slot']!r}; its slots: {', '.join(slots) or 'none'}")
        with preserved_rng():
            example = slot.example(tuple(one["example"]), one["dtype"])
            module = find_blueprint(one["blueprint"], one["parameters"]).build(example)
        slot.plant(module.to(slot.alpha.device))
        slot.enter(Stage.FOSSILIZED)
