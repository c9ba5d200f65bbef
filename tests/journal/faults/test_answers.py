"""How the writer handles a failure: it freezes if a name is in doubt, and answers every waiting caller."""

from __future__ import annotations

import asyncio
import errno
import threading

import pytest

from journal import Journal, JournalFailed
from tests.journal.make import FaultyFiles, begin, commit, event

SEGMENT = 8 * 4096
FOREVER = 1 << 30
PATIENCE_S = 20.0


@pytest.mark.parametrize("call", ["rename", "fsync_folder"])
def test_a_segment_whose_name_is_in_doubt_freezes_the_journal(tmp_path, call):
    """The name may or may not be on disk: no second file of that number is made, and the next start can tell."""
    files = FaultyFiles(call, FOREVER, FOREVER, errno.EIO)
    journal = begin(Journal.open(tmp_path, segment_bytes=SEGMENT, files=files))
    files.first = files.last = files.count + 1

    def fill() -> None:
        for n in range(50):
            commit(journal, [event(n)])

    with pytest.raises(JournalFailed, match="name"):
        fill()
    journal.close()

    assert len(list(tmp_path.glob("*.wal"))) <= 2


async def test_a_task_that_waits_for_the_write_in_flight_hears_that_it_failed(tmp_path):
    """Its events are in the failed frame and it had no answer yet: it gets JournalFailed."""
    in_flight, go_on = threading.Event(), threading.Event()

    def reached(point: str) -> None:
        if point == "commit":
            in_flight.set()
            go_on.wait(PATIENCE_S)

    files = FaultyFiles("pwrite", FOREVER, FOREVER, errno.EIO)
    journal = begin(Journal.open(tmp_path, segment_bytes=SEGMENT, files=files, reached=reached))
    files.first, files.last = files.count + 1, FOREVER
    journal.append(event(1), epoch=0, step=0)
    in_flight.wait(PATIENCE_S)
    waiting = asyncio.ensure_future(journal.durable_async())
    await asyncio.sleep(0)
    go_on.set()

    with pytest.raises(JournalFailed):
        await asyncio.wait_for(waiting, PATIENCE_S)
    journal.close()
