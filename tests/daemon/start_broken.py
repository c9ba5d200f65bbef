"""A daemon whose measurements, control and logs break as soon as a file `broken` lies in its run folder: it says how.

`raising`: measuring and logging raise. `hanging`: the loop, with the control socket on it, stands still for HANG_S, once.
`full`: the log is flooded.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path

from tests.daemon.start_daemon import main
from tolariad.daemon import live
from tolariad.daemon.spending import Spending

HANG_S = 6.0


def broken() -> Path:
    """The file that says it."""
    return Path(json.loads(sys.argv[1])["run_dir"]) / "broken"


def how() -> str:
    """What is wrong at present; empty where nothing is."""
    try:
        return broken().read_text()
    except FileNotFoundError:
        return ""


class Broken(RuntimeError):
    """Of what a healthy daemon would only tell."""


class BrokenHandler(logging.Handler):
    """Of the log, as far as the recorder and what it depends on would write there."""

    def emit(self, record: logging.LogRecord) -> None:
        if how() == "raising" and record.name.startswith("tolariad.kernel"):
            raise Broken(record.getMessage())


def break_everything() -> None:
    """Put the faults in; each looks at the file when its time comes."""
    tell, heed = Spending.tell, live.Daemon._heed

    def telling(self: Spending, published: object) -> None:
        if how() == "raising":
            raise Broken("measurements")
        tell(self, published)

    def heeding(self: live.Daemon, published: object) -> None:
        if how() == "hanging":
            broken().unlink()
            time.sleep(HANG_S)
        if how() == "full":
            logging.getLogger("flood").warning("x" * 1_000_000)
        heed(self, published)

    Spending.tell, live.Daemon._heed = telling, heeding
    logging.getLogger("tolariad").addHandler(BrokenHandler())


if __name__ == "__main__":
    break_everything()
    sys.exit(main())
