"""The entries of each optimizer's state for a parameter, and how each scales with the parameter's gradient.

Promises: nothing is guessed. An optimizer or entry that is not in the table is reported by name.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

import torch

from tolariad.trainer.optim.cautious import CautiousAdamW

if TYPE_CHECKING:
    from collections.abc import Mapping


class Kind(Enum):
    """How an entry scales if the gradient is multiplied by alpha. The value is the exponent of alpha.

    SECOND entries divide the step, so new units get the mean of the old units. For other kinds new units get 0.
    """

    FIRST = 1
    SECOND = 2
    # RMSprop's momentum sums g / sqrt(v), in which alpha cancels.
    INVARIANT = 0


STEP: Final = "step"
_ADAM: Final = {"exp_avg": Kind.FIRST, "exp_avg_sq": Kind.SECOND, "max_exp_avg_sq": Kind.SECOND}
KINDS: Final[Mapping[type[torch.optim.Optimizer], Mapping[str, Kind]]] = {
    CautiousAdamW: _ADAM,
    torch.optim.AdamW: _ADAM,
    torch.optim.Adam: _ADAM,
    torch.optim.SGD: {"momentum_buffer": Kind.FIRST},
    torch.optim.RMSprop: {"square_avg": Kind.SECOND, "grad_avg": Kind.FIRST, "momentum_buffer": Kind.INVARIANT},
    torch.optim.Adagrad: {"sum": Kind.SECOND},
}


def kinds_of(optimizer: torch.optim.Optimizer) -> Mapping[str, Kind]:
    """Return the table of an optimizer's entries. Raises TypeError, naming the known classes, for any other class."""
    found = KINDS.get(type(optimizer))
    if found is None:
        known = ", ".join(sorted(kind.__name__ for kind in KINDS))
        raise TypeError(f"the state of {type(optimizer).__name__} is not known; the known optimizers are {known}")
    return found
