"""The traces that torch's LR schedulers leave on an optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tolariad.trainer.torch_private import choice
from tolariad.trainer.torch_private.choice import private

if TYPE_CHECKING:
    from torch.optim import Optimizer


def is_marked(optimizer: Optimizer) -> bool | None:
    """Return whether a scheduler was ever made for this optimizer, which leaves a mark; None: it is not known.

    There is no public way to see the mark: a reader must search for schedulers.
    """
    return None if choice.ONLY_PUBLIC else bool(getattr(optimizer.step, "_wrapped_by_lr_sched", False))


def last_rates(scheduler: Any) -> list[Any]:
    """Return the rates that the scheduler wrote last, one for each group; empty before its first ones."""
    found = private(scheduler, "_last_lr")
    if found is None:
        try:
            found = scheduler.get_last_lr()
        except AttributeError:
            found = ()
    return list(found)
