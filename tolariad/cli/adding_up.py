"""Add up what the events of a journal say for Prometheus, for a daemon that was started again.

A process of its own: a long journal takes seconds, in which the daemon's threads are not to share an interpreter.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import msgspec

from journal.reader import Reader
from tolariad.core.messages.vocabulary import Unknown, decode_event
from tolariad.telemetry.totals import Adding, Totals

_NICE: Final = 10


def totals_of(journal: Path, until_seq: int) -> Totals:
    """Return the totals of the events up to one. Raises JournalError, OSError."""
    adding = Adding()
    with Reader(journal) as reader:
        for entry in reader:
            if entry.seq > until_seq:
                break
            try:
                event = decode_event(entry.event)
            except (ValueError, RecursionError):
                continue  # the fold says that it cannot be read
            if not isinstance(event, Unknown):
                adding.add(event)
    return adding.now


if __name__ == "__main__":
    os.nice(_NICE)
    sys.stdout.buffer.write(msgspec.msgpack.encode(totals_of(Path(sys.argv[1]), int(sys.argv[2]))))
