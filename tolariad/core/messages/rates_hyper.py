"""Hyper-parameters of optimizers other than the rate: an order for the optimizer, and its outcome."""

from typing import Final

from tolariad.core.calc.units import Name
from tolariad.core.messages.boundary import BoundaryOrder
from tolariad.core.messages.control import Command

# The name of the rate among the hyper-parameters. The rate controller alone changes it.
RATE: Final = "lr"
# The optimizer of everything that is no seed.
HOST: Final = "host"
# What the name of a seed's optimizer begins with.
SEED: Final = "seed."


class AdjustOptimizer(Command, frozen=True, kw_only=True):
    """Set hyper-parameters of one optimizer from the next step on.

    `optimizer`: an owner's name, "" or `host` for all that are no seed's, or the name of a group. `lr` becomes the rate
    of the first of these groups; the others keep their ratio to it. Other values are set in each of the groups.
    """

    optimizer: Name = ""
    values: dict[str, float]


class SetHyperparameters(BoundaryOrder, frozen=True, kw_only=True):
    """To the trainer: set these hyper-parameters. `optimizer` as in AdjustOptimizer; `lr` is never among them."""

    optimizer: str
    values: dict[str, float]


def is_of(optimizer: str, name: str) -> bool:
    """Return whether the optimizer or group `name` is meant by `optimizer`."""
    if optimizer in ("", HOST):
        return not name.startswith(SEED)
    return name == optimizer or name.startswith(f"{optimizer}.")
