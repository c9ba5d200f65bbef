"""When the process of an analysis has a core beside training, and what is said if it was too slow.

The analyst of a daemon and the one in a program follow the same figures.
"""

from __future__ import annotations

import enum
from typing import Final

# How often to look whether a process that runs on idle cores only starves.
LOOK_S: Final = 0.5
# An eighth of the time. While the process runs, training on all cores makes hardly a step: its threads wait for each
# other many times in each.
RUN_S: Final = 0.04
PAUSE_S: Final = 0.28


class Turn(enum.Enum):
    """When a process has a core: if it is idle, in turns with the training, or as any other process."""

    IDLE = "idle"
    ALTERNATE = "alternate"
    SHARE = "share"


def too_slow(limit_s: float) -> str:
    """Return the reason of an analysis that did not end in time, as a sentence."""
    return f"It did not answer within {limit_s:g} s (prune.analysis_timeout_s)."
