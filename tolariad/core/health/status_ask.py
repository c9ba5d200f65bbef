"""How well the run is, in one word: what the manifest of a checkpoint records as `health`.

Promises: the status is a function of the folded state. A worse reason hides a better one.
"""

from __future__ import annotations

from typing import Protocol

from tolariad.core.checkpoints.slice import HasCheckpoints
from tolariad.core.checkpoints.words import HealthStatus
from tolariad.core.health.conservative_slice import HasStability
from tolariad.core.health.emergency_slice import HasEmergency
from tolariad.core.health.emergency_words import Level
from tolariad.core.run.slice import HasRun
from tolariad.core.steps.slice import HasProgress


class Reads(HasRun, HasProgress, HasCheckpoints, HasStability, HasEmergency, Protocol):
    """The slices that the status follows from."""


def health_status(state: Reads) -> HealthStatus:
    """Return the status that the journal proves at this moment.

    CRITICAL and UNHEALTHY: an emergency of that level, or of MAJOR or SEVERE, is not cleared yet. DEGRADED: the run is
    in conservative mode, or fewer than `snapshots.watch_steps` steps followed the last finding or rollback. UNKNOWN: no
    step was made yet.
    """
    level = state.emergency.level
    if level is Level.CRITICAL:
        return HealthStatus.CRITICAL
    if level in (Level.MAJOR, Level.SEVERE):
        return HealthStatus.UNHEALTHY
    if state.stability.conservative or _is_on_watch(state):
        return HealthStatus.DEGRADED
    return HealthStatus.HEALTHY if state.progress.step else HealthStatus.UNKNOWN


def _is_on_watch(state: Reads) -> bool:
    since = state.checkpoints.watch_from
    return since > 0 and state.progress.step - since < state.run.policy.snapshot_watch
