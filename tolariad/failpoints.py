"""Named points at which a test may end the process. A no-op unless the environment arms one.

`TOLARIA_FAILPOINT=NAME:N[:DELAY_US][@FILE][,…]` ends the process with SIGKILL, DELAY_US microseconds after it has reached
NAME for the N-th time (counted from 1, in each process anew). With a FILE it happens once for all processes: only the one
that can unlink FILE ends, from the N-th time on. Promises: unarmed, `reached` is one comparison. It must not know: who
calls it.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Final, NamedTuple

POINTS: Final = (
    "start",
    "replay",
    "build",
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


class _Armed(NamedTuple):
    """When a point is due: from the `times`-th time, `delay_s` later, if `token` (a path, or none) can be unlinked."""

    times: int
    delay_s: float
    token: str


def _parse(text: str) -> dict[str, list[_Armed]]:
    """The armed points. Raises ValueError where the text is nonsense."""
    armed: dict[str, list[_Armed]] = {}
    for part in filter(None, text.split(",")):
        rule, _, token = part.partition("@")
        name, count, *delay = rule.split(":")
        if name not in POINTS:
            raise ValueError(f"{VARIABLE}: no point is called {name!r}; there are {', '.join(POINTS)}")
        armed.setdefault(name, []).append(_Armed(int(count), int(delay[0]) / 1e6 if delay else 0.0, token))
    return armed


_armed = _parse(os.environ.get(VARIABLE, ""))
_counts: dict[str, int] = {}


def reached(name: str) -> None:
    """Say that the program is at point `name`; does not return where that point is armed and due."""
    if not _armed or name not in _armed:
        return
    _counts[name] = _counts.get(name, 0) + 1
    for armed in _armed[name]:
        if _is_due(armed, _counts[name]):
            time.sleep(armed.delay_s)
            os.kill(os.getpid(), signal.SIGKILL)


def _is_due(armed: _Armed, count: int) -> bool:
    if not armed.token:
        return count == armed.times
    if count < armed.times:
        return False
    try:
        os.unlink(armed.token)  # noqa: PTH108 - on a hot path when armed; a Path would be made each time
    except FileNotFoundError:
        return False
    return True
