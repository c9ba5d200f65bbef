"""Find torch's LR schedulers that step an optimizer of the run, which sets its rates itself.

The search begins when a rate is found changed, or a scheduler has wrapped the optimizer's `step`. It costs a tenth of a
second.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any, Final
from weakref import ReferenceType, WeakKeyDictionary, ref

from torch.optim.lr_scheduler import LRScheduler

from tolariad.core import messages as m
from tolariad.trainer.torch_private.schedulers import is_marked, last_rates

if TYPE_CHECKING:
    from torch.optim import Optimizer

_GONE: Final = "made in a call, and gone after it"
# The schedulers of an optimizer, as of the last search. Weak in both: a search must keep neither of them alive.
_found: Final[WeakKeyDictionary[Optimizer, list[ReferenceType[LRScheduler]]]] = WeakKeyDictionary()


def what_wrote(optimizer: Optimizer, index: int, found: float | None) -> str:
    """Return the violation's words if a scheduler wrote this rate into the group `index`; else ""."""
    for scheduler in _schedulers(optimizer):
        rates = last_rates(scheduler)
        if index < len(rates) and found is not None and float(rates[index]) == found:
            return _words(scheduler)
    if _is_scheduled(optimizer) and not _schedulers(optimizer):
        return f"{m.SCHEDULER_STEPPED} ({_GONE})"
    return ""


def what_stepped(optimizer: Optimizer) -> str:
    """Return the violation's words if a scheduler of this optimizer was stepped, whether it changed a rate or not."""
    if not _is_scheduled(optimizer):
        return ""
    if not _schedulers(optimizer):
        _found.pop(optimizer)  # it was created after the last search
    return next((_words(one) for one in _schedulers(optimizer) if one.last_epoch > 0), "")


def _is_scheduled(optimizer: Optimizer) -> bool:
    """Return whether a scheduler was ever made for this optimizer."""
    marked = is_marked(optimizer)
    return bool(_schedulers(optimizer)) if marked is None else marked


def _words(scheduler: Any) -> str:
    return f"{m.SCHEDULER_STEPPED} ({type(scheduler).__name__})"


def _schedulers(optimizer: Optimizer) -> list[LRScheduler]:
    held = _found.get(optimizer)
    alive = [one for each in held or () if (one := each()) is not None]
    # If all of them are gone, others may have taken their place. If there was none, the next search finds none either.
    if held is None or (held and not alive):
        # type(): the __class__ of a proxy may run code.
        _found[optimizer] = [
            # An optimizer does not know its schedulers: only the collector's list of all objects has them.
            ref(one)
            for one in gc.get_objects()
            if issubclass(type(one), LRScheduler) and one.__dict__.get("optimizer") is optimizer
        ]
        alive = [one for each in _found[optimizer] if (one := each()) is not None]
    return alive
