"""The interfaces between Tolaria's parts, as Protocols: a class satisfies one by having its methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from tolariad.core.calc.learning_rate.schedule import GroupConfig


@runtime_checkable
class ILRController(Protocol):
    """The only component that changes a learning rate. `UnifiedLRController` satisfies it. Optimizers are torch's."""

    def register_optimizer(self, name: str, optimizer: Any, config: GroupConfig | Sequence[GroupConfig]) -> Any:
        """Take an optimizer over, with one configuration for all its groups or one for each."""

    def unregister_optimizer(self, name: str) -> None:
        """Release the optimizer; its rates stay as they are."""

    def replace_optimizer(self, old: Any, new: Any) -> None:
        """Put `new` (which may be `old` with other parameters) in the place of `old`: ids, schedules and rates stay."""

    def add_new_parameters(
        self, optimizer: Any, new_params: Iterable[Any], parent_group_name: str | None = None
    ) -> Any:
        """Add parameters that were created during training, in a group with its own rate."""

    def step(self, epoch: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """After `optimizer.step()`: set and return the next rates, by group id."""

    def verify(self, strict: bool = False) -> bool:  # noqa: FBT001, FBT002 - fixed from outside
        """Return whether every rate is correct, and reset those that are not."""
