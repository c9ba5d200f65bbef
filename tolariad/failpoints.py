"""Named points at which a test may end the process. A no-op unless the environment arms one.

`TOLARIA_FAILPOINT=NAME:N[:DELAY_US][@FILE][,…]` ends the process with SIGKILL, DELAY_US microseconds after it has reached
NAME for the N-th time (counted from 1, in each process anew). With a FILE it is counted only while that FILE exists, and
happens once for all processes: only the one that can unlink FILE ends. Promises: unarmed, `reached` is one comparison. It must not know: who
calls it.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Final

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
    "capture",
    "checkpoint_file",
    "manifest",
    "publish",
    "commit",
    "rotation_head",
    "rotation",
    "removal",
    "rollback_prepare",
    "rollback_commit",
    "rollback_confirm",
    "snapshot",
    "snapshot_taken",
)
VARIABLE: Final = "TOLARIA_FAILPOINT"


class _Armed:
    """One rule: due at the `times`-th pass, `delay_s` later, if `token` (a path, or none) can be unlinked then."""

    def __init__(self, times: int, delay_s: float, token: str) -> None:
        self._times = times
        self._token = token
        self._passed = 0
        self.delay_s = delay_s

    def is_due(self) -> bool:
        """Count a pass."""
        if self._token and not os.path.exists(self._token):  # noqa: PTH110 - on a hot path; a Path would be made each time
            return False
        self._passed += 1
        return self._passed == self._times if not self._token else self._passed >= self._times and self._takes_token()

    def _takes_token(self) -> bool:
        try:
            os.unlink(self._token)  # noqa: PTH108 - as above
        except FileNotFoundError:
            return False
        return True


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


def reached(name: str) -> None:
    """Say that the program is at point `name`; does not return where that point is armed and due."""
    if not _armed or name not in _armed:
        return
    for armed in _armed[name]:
        if armed.is_due():
            time.sleep(armed.delay_s)
            os.kill(os.getpid(), signal.SIGKILL)
