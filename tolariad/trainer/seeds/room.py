"""The room that seeds may take in a snapshot, so that one still fits into its slot of the arena after germinations.

Promises: nothing of the run changes, and no memory is taken for parameters: blueprints are built without storage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from tolariad.trainer.data.randomness import preserved_rng
from tolariad.trainer.seeds.registry import find_blueprint

if TYPE_CHECKING:
    from torch import nn

    from tolariad.trainer.seeds.plots import Plot
    from tolariad.trainer.setup import Setup

# For a tensor: its row in the table, its entry in the state, and its alignment.
_TENSOR_BYTES: Final = 1024
_SEED_BYTES: Final = 16 * 1024


def room_for_seeds(setup: Setup) -> int:
    """Return the bytes that the largest known blueprint would take in every slot that is empty now.

    Blueprints have their default options. One that cannot be built for a slot's input takes no room there.
    """
    garden = setup.garden
    empty = [plot for plot in garden.plots.values() if plot.owner is None and plot.input_dtype]
    if not empty:
        return 0
    copies = 1 + garden.optimizers.state_copies() + (setup.average is not None)
    with preserved_rng():
        return sum(max(_bytes(plot, name, copies) for name in garden.blueprints) for plot in empty)


def _bytes(plot: Plot, blueprint: str, copies: int) -> int:
    try:
        example = plot.slot.example(plot.input_shape, plot.input_dtype).to("meta")
        with torch.device("meta"):
            module = find_blueprint(blueprint).build(example)
        return _of_module(module, copies)
    except Exception:  # noqa: BLE001 - any code of the user's; what cannot be built here needs no room
        return 0


def _of_module(module: nn.Module, copies: int) -> int:
    parameters, buffers = list(module.parameters()), list(module.buffers())
    held = copies * sum(one.nbytes for one in parameters) + sum(one.nbytes for one in buffers)
    return held + _TENSOR_BYTES * (copies * len(parameters) + len(buffers)) + _SEED_BYTES
