"""When a checkpoint is due."""

from __future__ import annotations

from typing import Protocol

from tolariad.core.checkpoints.slice import HasCheckpoints
from tolariad.core.health.slice import HasStability
from tolariad.core.run.slice import HasDisk, HasRun


class Reads(HasRun, HasCheckpoints, HasStability, HasDisk, Protocol):
    """The slices that decide it: the policy, the time of the last checkpoint, the disk, conservative mode."""


def interval_is_over(state: Reads, mono: int) -> bool:
    """Return whether the interval since the last checkpoint is over and none is being written."""
    elapsed_s = (mono - state.checkpoints.clock_mono) / 1e9
    return (
        state.disk.low is None
        and not state.checkpoints.open
        and elapsed_s >= state.run.policy.checkpoint_interval_s * state.stability.checkpoint_factor
    )


def due_after_epoch(state: Reads, epoch: int, mono: int) -> bool:
    """Return whether a checkpoint is due after an epoch: every N epochs, but never two within the gap.

    Conservative mode halves N. The last epoch's checkpoint is taken when training has ended.
    """
    policy = state.run.policy
    elapsed_s = (mono - state.checkpoints.clock_mono) / 1e9
    if state.disk.low is not None:
        return False
    every = max(1, int(policy.checkpoint_every_epochs * state.stability.checkpoint_factor))
    on_epoch = epoch % every == 0 and elapsed_s >= policy.checkpoint_gap_s
    return on_epoch or interval_is_over(state, mono)
