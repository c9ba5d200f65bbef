"""Whether step reports may wait for each other before they are written."""

from __future__ import annotations

from typing import Final, Protocol

from tolariad.core.run.slice import HasRun
from tolariad.core.steps.slice import HasProgress

_SHORT_STEP_NS: Final = 5_000_000


class RunAndProgress(HasRun, HasProgress, Protocol):
    """The slices with the configured synchronisation, and the speed of steps."""


def may_wait(state: RunAndProgress) -> bool:
    """Return whether step reports may be collected before they are written (`journal.sync`).

    `batch`: always. `auto`: if recent steps took less than 5 ms; one frame each would be hundreds of gigabytes a day.
    """
    if state.run.policy.sync != "auto":
        return state.run.policy.sync == "batch"
    speed = state.progress.speed
    steps_measured = speed.mid_step - speed.old_step
    return steps_measured > 0 and (speed.mid_mono - speed.old_mono) < steps_measured * _SHORT_STEP_NS
