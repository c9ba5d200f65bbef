"""Named points at which a test may end the process, or let an operation fail. A no-op unless the environment arms one.

`TOLARIA_FAILPOINT=NAME:N[:DELAY_US][@FILE][,…]` kills the process with SIGKILL, DELAY_US microseconds after it has
reached NAME for the N-th time. N counts from 1, in each process anew. With a FILE, passes count only while FILE exists.
The process that unlinks FILE is killed, so the failpoint acts once for all processes. With `!EIO` (or the name of
another error) after N or DELAY_US the point raises this OSError instead. Promise: if no point is armed, `reached` is
one comparison.
"""

from __future__ import annotations

import errno
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
    "seed_move",
    "seed_planted",
    "seed_removed",
    "seed_moved",
    "prune_order",
    "prune_cut",
    "prune_acted",
    "analysis",
    "comparison",
    "compared",
)
VARIABLE: Final = "TOLARIA_FAILPOINT"


class _Armed:
    """One rule: kill at the `times`-th pass, after `delay_s`. With a `token`, only the process that unlinks it.

    `error`: the number of the error to raise instead, or 0.
    """

    def __init__(self, times: int, delay_s: float, token: str, error: int) -> None:
        self.error = error
        self._times = times
        self._token = token
        self._passed = 0
        self.delay_s = delay_s

    def is_due(self) -> bool:
        """Count a pass and return whether the process must die at this one."""
        # os.path and not Path: this is a hot path, and a Path would be made each time.
        if self._token and not os.path.exists(self._token):  # noqa: PTH110
            return False
        self._passed += 1
        return self._passed == self._times if not self._token else self._passed >= self._times and self._takes_token()

    def _takes_token(self) -> bool:
        # unlink is atomic: of several processes that are due, exactly one succeeds.
        try:
            os.unlink(self._token)  # noqa: PTH108 - as above
        except FileNotFoundError:
            return False
        return True


def _parse(text: str) -> dict[str, list[_Armed]]:
    """Return the armed points. Raises ValueError if the text is malformed or names an unknown point."""
    found: dict[str, list[_Armed]] = {}
    for part in filter(None, text.split(",")):
        rule, _, token = part.partition("@")
        rule, _, error = rule.partition("!")
        name, count, *delay = rule.split(":")
        if name not in POINTS:
            raise ValueError(f"{VARIABLE}: there is no point {name!r}; the points are {', '.join(POINTS)}")
        delay_s, number = int(delay[0]) / 1e6 if delay else 0.0, int(getattr(errno, error)) if error else 0
        found.setdefault(name, []).append(_Armed(int(count), delay_s, token, number))
    return found


# The armed points and their rules. A step looks here first, and spares itself a call that takes 2 us with cold caches.
armed = _parse(os.environ.get(VARIABLE, ""))


def reached(name: str) -> None:
    """Mark point `name`. Does not return if the point is armed and due. Raises OSError if it is armed with an error."""
    if not armed or name not in armed:
        return
    error = 0
    for rule in armed[name]:
        if rule.is_due():
            time.sleep(rule.delay_s)
            # Raised only after every rule has counted this pass.
            error = rule.error
            if not error:
                # SIGKILL and not exit: no handler, no flush, nothing that a real crash would not do either.
                os.kill(os.getpid(), signal.SIGKILL)
    if error:
        raise OSError(error, os.strerror(error))
