"""A daemon whose measurements, control and logs break when a file `broken` is in its run folder; its content says how.

`raising`: measuring and logging raise. `hanging`: the loop, with the control socket on it, stands still for HANG_S,
once. `full`: the log is flooded.
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
    """Return the file that selects the fault."""
    return Path(json.loads(sys.argv[1])["run_dir"]) / "broken"


def how() -> str:
    """Return the current fault; empty if there is none."""
    try:
        return broken().read_text()
    except FileNotFoundError:
        return ""


class Broken(RuntimeError):
    """A fault of measurements and logs only."""


class BrokenHandler(logging.Handler):
    """Of the log, as far as the recorder and what it depends on would write there."""

    def emit(self, record: logging.LogRecord) -> None:
        if how() == "raising" and record.name.startswith("tolariad.kernel"):
            raise Broken(record.getMessage())


def break_everything() -> None:
    """Install the faults; each reads the file when it is called."""
    tell, heed = Spending.tell, live.Host._heed

    def telling(self: Spending, published: object) -> None:
        if how() == "raising":
            raise Broken("measurements")
        tell(self, published)

    def heeding(self: live.Host, published: object) -> None:
        if how() == "hanging":
            broken().unlink()
            time.sleep(HANG_S)
        if how() == "full":
            logging.getLogger("flood").warning("x" * 1_000_000)
        heed(self, published)

    Spending.tell, live.Host._heed = telling, heeding
    logging.getLogger("tolariad").addHandler(BrokenHandler())


if __name__ == "__main__":
    break_everything()
    sys.exit(main())
