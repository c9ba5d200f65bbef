"""How the writer handles a failure: it freezes if a name is in doubt."""

from __future__ import annotations

import errno

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
