"""What Tolaria's parts ask of each other, as Protocols: a class satisfies one by having its methods.

It must not know: any class that satisfies one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from tolariad.core.learning_rate import GroupConfig


class EpochResult(Struct, frozen=True):
    """An epoch that is done: its number, its updates, the validation's metrics, seconds."""

    epoch: int
    steps: int
    metrics: dict[str, float]
    seconds: float


class ValidationResult(Struct, frozen=True):
    """A validation: means over all samples; `loss` and `accuracy` are None where the task does not measure them."""

    loss: float | None
    accuracy: float | None
    metrics: dict[str, float]


@runtime_checkable
class ITrainingOrchestrator(Protocol):
    """Training as the other subsystems see it (source 003): the daemon's `TrainingTask` satisfies it."""

    async def train_epoch(self) -> EpochResult:
        """Wait until the epoch under way is done."""
        ...

    async def validate(self) -> ValidationResult:
        """Wait for the next validation that ends."""
        ...

    async def checkpoint(self, path: str) -> bool:
        """Take a checkpoint at the next boundary and copy it to the new folder `path` once it is committed."""
        ...

    async def rollback(self, epoch: int) -> bool:
        """Go back to the newest checkpoint at or before the end of `epoch`."""
        ...


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
