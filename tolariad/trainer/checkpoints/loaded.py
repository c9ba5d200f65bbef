"""A run's state as it was read, from memory or from disk, and before it is restored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from tolariad.storage import Manifest
    from tolariad.trainer.checkpoints.snapshot import Position


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A snapshot, taken apart. It may be restored from any number of times.

    `transient` are the buffers that `state_dict()` leaves out. `average` is the moving average of the parameters, where the run
    kept one; a tied tensor is under each of its names.
    """

    position: Position
    model: dict[str, torch.Tensor]
    state: dict[str, Any]
    optimizer: dict[str, Any]
    average: dict[str, torch.Tensor] | None = None
    transient: tuple[str, ...] = ()
    applied_cause: int = 0
    manifest: Manifest | None = None
