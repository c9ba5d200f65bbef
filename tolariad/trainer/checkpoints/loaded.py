"""A run's state after it was read from memory or disk, and before it is restored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tolariad.trainer.architecture.ledger import changes_from
from tolariad.trainer.checkpoints.files import MASKS_FILE

if TYPE_CHECKING:
    import torch

    from tolariad.core import messages as m
    from tolariad.storage import Manifest
    from tolariad.trainer.checkpoints.snapshot import Position


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A decoded snapshot. It may be restored any number of times. `tensors` are all, by group of files.

    `transient` are the buffers that `state_dict()` leaves out. `average` is the moving average of the parameters, if
    the run kept one. A tied tensor is listed under each of its names. `acted` are the keys of the newest boundary
    orders that the state contains. `optimizers` are the trees of all optimizers, by owner, in their order. The key of
    the first is "" if it is the only one of the host. Tensors and optimizers of seeds are among the others.
    """

    position: Position
    model: dict[str, torch.Tensor]
    state: dict[str, Any]
    optimizers: dict[str, dict[str, Any]]
    average: dict[str, torch.Tensor] | None = None
    transient: tuple[str, ...] = ()
    tensors: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    acted: tuple[int, ...] = ()
    manifest: Manifest | None = None

    @property
    def participants(self) -> dict[str, Any]:
        """The states of the participants of a rollback, by name."""
        held: dict[str, Any] = self.state.get("participants", {})
        return held

    @property
    def slots(self) -> dict[str, Any]:
        """The states of the slots for seeds, by name."""
        held: dict[str, Any] = self.state.get("seeds", {}).get("slots", {})
        return held

    @property
    def pruning(self) -> dict[str, Any]:
        """The masks in force; empty if there are none. `displaced`: the numbers that they set to 0."""
        held: dict[str, Any] = self.state.get("pruning", {})
        return held

    @property
    def displaced(self) -> dict[str, torch.Tensor]:
        """The numbers that the newest masks set to 0."""
        return self.tensors.get(MASKS_FILE, {})

    @property
    def changes(self) -> tuple[m.ScriptChange, ...]:
        """The changes of the model's shape that led to this state."""
        return changes_from(self.state.get("architecture"))
