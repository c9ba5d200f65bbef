"""A daemon that gets signals at places that a test cannot meet from outside; else like `start_daemon`.

TOLARIA_SIGNALS=PLACE:NAME[+NAME…][,…]. The place `open` is before the journal is opened, and `begin` before the start
is recorded. `leave` is after the end of the run, when everything is closed but the loop.
"""

from __future__ import annotations

import os
import signal
import sys

from tests.daemon import start_daemon
from tolariad.daemon import live, running

AT = dict(part.split(":") for part in os.environ["TOLARIA_SIGNALS"].split(","))
_open_run, _begin, _leave = running.open_run, live.begin, live.Host._leave


def get(place: str) -> None:
    """Send the signals of this place to this process."""
    for name in filter(None, AT.get(place, "").split("+")):
        os.kill(os.getpid(), signal.Signals[name])


def open_run(*given):
    get("open")
    return _open_run(*given)


def begin(*given):
    get("begin")
    return _begin(*given)


async def leave(self):
    await _leave(self)
    get("leave")


running.open_run, live.begin, live.Host._leave = open_run, begin, leave

if __name__ == "__main__":
    sys.exit(start_daemon.main())
