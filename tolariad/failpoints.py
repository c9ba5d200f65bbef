"""Named points at which a test may end the process. A no-op unless the environment arms one.

`TOLARIA_FAILPOINT=NAME:N[:DELAY_US][,NAME:N…]` ends the process with SIGKILL the N-th time it reaches NAME (counted from
1), DELAY_US microseconds later. Promises: unarmed, `reached` is one comparison. It must not know: who calls it.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Final

POINTS: Final = (
    "start",
    "replay",
    "restore",
    "rerun",
    "step",
    "gate",
    "validation",
    "boundary",
    "checkpoint_file",
    "manifest",
    "commit",
    "rotation",
)
VARIABLE: Final = "TOLARIA_FAILPOINT"


def _parse(text: str) -> dict[str, tuple[int, float]]:
    """The armed points, each with its count and delay in seconds. Raises ValueError where the text is nonsense."""
    armed = {}
    for part in filter(None, text.split(",")):
        name, count, *delay = part.split(":")
        if name not in POINTS:
            raise ValueError(f"{VARIABLE}: no point is called {name!r}; there are {', '.join(POINTS)}")
        armed[name] = (int(count), int(delay[0]) / 1e6 if delay else 0.0)
    return armed


_armed = _parse(os.environ.get(VARIABLE, ""))
_counts: dict[str, int] = {}


def reached(name: str) -> None:
    """Say that the program is at point `name`; does not return where that point is armed and due."""
    if not _armed or name not in _armed:
        return
    _counts[name] = _counts.get(name, 0) + 1
    count, delay_s = _armed[name]
    if _counts[name] == count:
        time.sleep(delay_s)
        os.kill(os.getpid(), signal.SIGKILL)
