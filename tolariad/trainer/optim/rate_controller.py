"""The part of the rate controller that a rebuild uses, and how it is informed of a rebuild."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.optim import Optimizer

    from tolariad.core import messages as m

    Told: TypeAlias = m.OptimizerRebuildPrepared | m.OptimizerRebuildCommitted | m.OptimizerRebuildAborted
    Tell: TypeAlias = Callable[[Told], None]


def tell_all(on_event: Tell | None, controller: RateController | None) -> Tell:
    """Return a function that reports a rebuild to `on_event` and to the controller's `on_rebuild`, if they exist."""

    def tell(event: Told) -> None:
        # Look it up for each event: the run's controller may have got a receiver in the meantime.
        also = getattr(controller, "on_rebuild", None)
        for one in (on_event, also):
            if one is not None:
                one(event)

    return tell


class RateController(Protocol):
    """The part of UnifiedLRController that a rebuild needs. If it has `on_rebuild`, it is informed of rebuilds."""

    def replace_optimizer(self, old: Optimizer, new: Optimizer) -> None:
        """Replace `old` by `new`, or by itself with other parameters. The groups keep ids, schedules and rates, in
        order.

        Raises ValueError, with nothing changed, if `old` is not registered or the number of groups differs.
        """

    def add_new_parameters(
        self, optimizer: Optimizer, new_params: Iterable[Any], parent_group_name: str | None = None
    ) -> Any:
        """Add a group with its own rate. If it raises, nothing has changed."""
