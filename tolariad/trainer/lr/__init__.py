"""Control of the learning rate by one object (Tolaria's UnifiedLRController, source 000).

Promises: P5, as docs/learning-rate.md describes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tolariad.core.calc.learning_rate.schedule import GroupConfig, LRIntegrityError, LRPolicy, LRSnapshot
from tolariad.trainer.lr.controller import UnifiedLRController
from tolariad.trainer.lr.guard import Violation
from tolariad.trainer.lr.integrity import controlling

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

__all__ = [
    "GroupConfig",
    "LRIntegrityError",
    "LRPolicy",
    "LRSnapshot",
    "UnifiedLRController",
    "Violation",
    "controller_of",
]


def controller_of(held: Optimizer | nn.Module) -> UnifiedLRController | None:
    """Return the controller of this optimizer, or of the model's parameters (in a task: the run's own); or None."""
    found = controlling(held)
    return found if isinstance(found, UnifiedLRController) else None
