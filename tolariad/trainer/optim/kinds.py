"""What each optimizer keeps of a parameter, and how each of these behaves when the parameter's gradient is scaled.

Promises: an optimizer or an entry that is not in the table is named, never guessed at.
It must not know: mappings, models.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

import torch

from tolariad.trainer.optim.cautious import CautiousAdamW

if TYPE_CHECKING:
    from collections.abc import Mapping


class Kind(Enum):
    """How an entry follows a gradient that is multiplied by alpha: the value is alpha's exponent.

    SECOND entries are what steps are divided by: new units get the mean of the old ones, the others get 0.
    """

    FIRST = 1
    SECOND = 2
    # RMSprop's momentum gathers g / sqrt(v), in which alpha cancels.
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
    """The table of an optimizer's entries. Raises TypeError, naming the known ones, for any other class."""
    found = KINDS.get(type(optimizer))
    if found is None:
        known = ", ".join(sorted(kind.__name__ for kind in KINDS))
        raise TypeError(f"what {type(optimizer).__name__} keeps of a parameter is not known; known are {known}")
    return found
