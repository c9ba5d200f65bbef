"""A daemon whose bus, metrics and logs break as soon as a file `broken` lies in its run folder: it says how.

`raising`: whatever is told, offered or logged raises. `hanging`: the loop, with telemetry, control and logs on it, stands still
for HANG_S, once. `full`: nobody takes anything, and the log is flooded.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path

from tests.daemon.start_daemon import main
from tolariad.daemon import live
from tolariad.telemetry import MemorySink, TelemetryCollector

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
    offer, heed, publish = live.offer_events, live.Daemon._heed, MemorySink.publish

    def offering(collector: TelemetryCollector, events: object) -> None:
        if how() == "raising":
            raise Broken("telemetry")
        offer(collector, events)
        for _ in range(2000 if how() == "full" else 0):
            offer(collector, events)

    def heeding(self: live.Daemon, published: object) -> None:
        if how() == "hanging":
            broken().unlink()
            time.sleep(HANG_S)
        if how() == "full":
            logging.getLogger("flood").warning("x" * 1_000_000)
        heed(self, published)

    async def publishing(self: MemorySink, *given: object) -> object:
        if how():
            raise Broken("the bus")
        return await publish(self, *given)

    live.offer_events, live.Daemon._heed, MemorySink.publish = offering, heeding, publishing
    logging.getLogger("tolariad").addHandler(BrokenHandler())


if __name__ == "__main__":
    break_everything()
    sys.exit(main())
