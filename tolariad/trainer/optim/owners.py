"""The owners of a run's parameters: the host, or the parts that the task names. Each has one optimizer.

Promises: every trained parameter has exactly one owner. The order of owners is the order in which optimizers step, are
captured and are restored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor
    from torch.optim import Optimizer

# The owner of everything if the task names no parts.
HOST: Final = "host"


class Owner(NamedTuple):
    """A part of the model and the optimizer of its parameters."""

    name: str
    optimizer: Optimizer


def parameters_of(owners: Iterable[Owner]) -> Iterator[Tensor]:
    """Yield every parameter of every owner, in the order of owners and groups."""
    return (parameter for owner in owners for group in owner.optimizer.param_groups for parameter in group["params"])
