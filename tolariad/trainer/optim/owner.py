"""What a rebuild asks of the rate controller, and how it is told.

It must not know: policies, schedules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.optim import Optimizer

    from tolariad.core.rates.optimizer_words import (
        OptimizerRebuildAborted,
        OptimizerRebuildCommitted,
        OptimizerRebuildPrepared,
    )

    Told: TypeAlias = OptimizerRebuildPrepared | OptimizerRebuildCommitted | OptimizerRebuildAborted
    Tell: TypeAlias = Callable[[Told], None]


def tell_all(on_event: Tell | None, controller: RateOwner | None) -> Tell:
    """Tell of a rebuild whoever asked, and whoever the owner of the rates has to tell."""

    def tell(event: Told) -> None:
        # Looked at with each event: a run's own controller may have been given a journal since.
        also = getattr(controller, "on_rebuild", None)
        for one in (on_event, also):
            if one is not None:
                one(event)

    return tell


class RateOwner(Protocol):
    """The part of UnifiedLRController that a rebuild needs. One with `on_rebuild` is told of it besides."""

    def replace_optimizer(self, old: Optimizer, new: Optimizer) -> None:
        """`new` takes the place of `old`, which may be itself with other parameters in its groups: the groups, in their
        order, keep ids, schedules and rates, so the trajectory does not move. Raises ValueError for an optimizer that is
        not registered, or another number of groups; then nothing has changed.
        """

    def add_new_parameters(
        self, optimizer: Optimizer, new_params: Iterable[Any], parent_group_name: str | None = None
    ) -> Any:
        """Add a group with a rate of its own. Raises without having changed anything."""
