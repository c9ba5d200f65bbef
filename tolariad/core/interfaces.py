"""What Tolaria's parts ask of each other, as Protocols: a class satisfies one by having its methods.

It must not know: any class that satisfies one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from tolariad.core.learning_rate import GroupConfig


@runtime_checkable
class ILRController(Protocol):
    """The only one who changes a learning rate; `UnifiedLRController` satisfies it. Optimizers are torch's."""

    def register_optimizer(self, name: str, optimizer: Any, config: GroupConfig | Sequence[GroupConfig]) -> Any:
        """Take an optimizer over, one configuration for all its groups or one for each."""

    def unregister_optimizer(self, name: str) -> None:
        """Let it go; its rates stay."""

    def replace_optimizer(self, old: Any, new: Any) -> None:
        """`new` (which may be `old` with other parameters) takes its place: ids, schedules and rates stay."""

    def add_new_parameters(
        self, optimizer: Any, new_params: Iterable[Any], parent_group_name: str | None = None
    ) -> Any:
        """Add parameters that came to be while training, in a group with a rate of its own."""

    def step(self, epoch: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """After `optimizer.step()`: on to the next rates, by group id."""

    def verify(self, strict: bool = False) -> bool:  # noqa: FBT001, FBT002 - fixed from outside
        """Is every rate what it has to be? What is not is put back."""
