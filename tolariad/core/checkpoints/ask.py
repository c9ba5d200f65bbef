"""When a checkpoint is due."""

from __future__ import annotations

from typing import Protocol

from tolariad.core.checkpoints.slice import HasCheckpoints
from tolariad.core.health.conservative_ask import restraint
from tolariad.core.health.conservative_slice import HasStability
from tolariad.core.run.disk_slice import HasDisk
from tolariad.core.run.slice import HasRun


class Reads(HasRun, HasCheckpoints, HasStability, HasDisk, Protocol):
    """What it depends on: the policy, the time of the last one, the disk, and conservative mode."""


def interval_is_over(state: Reads, mono: int) -> bool:
    """Time for one, whatever the epoch, sooner in conservative mode; not while another is being written."""
    elapsed_s = (mono - state.checkpoints.clock_mono) / 1e9
    return (
        state.disk.low is None
        and not state.checkpoints.open
        and elapsed_s >= state.run.policy.checkpoint_interval_s * restraint(state).checkpoint_interval
    )


def due_after_epoch(state: Reads, epoch: int, mono: int) -> bool:
    """Every N epochs, twice as often in conservative mode, but never two within the gap; not after the last epoch, whose is
    taken when training has ended.
    """
    policy = state.run.policy
    elapsed_s = (mono - state.checkpoints.clock_mono) / 1e9
    if state.disk.low is not None:
        return False
    every = max(1, int(policy.checkpoint_every_epochs * restraint(state).checkpoint_interval))
    on_epoch = epoch % every == 0 and elapsed_s >= policy.checkpoint_gap_s
    return on_epoch or interval_is_over(state, mono)
