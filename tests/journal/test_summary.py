"""The figures of a journal are counted from its content."""

from __future__ import annotations

import pytest

from journal import Journal, JournalMissing, summarize
from tests.journal.make import SECOND_NS, FaultyFiles, begin, commit, event


def test_the_figures_are_those_of_what_was_written(quick_path):
    """Ten batches of known sizes: every count, size and time is right."""
    batches = [[event(n), event(n, size=n * 1_000)] for n in range(1, 11)]
    with begin(Journal.open(quick_path, segment_bytes=65_536)) as journal:
        for step, batch in enumerate(batches, start=1):
            commit(journal, batch, step=step)

    found = summarize(quick_path)
    assert (found.events, found.steps, found.events_a_frame) == (20, 10, 2.0)
    assert found.event_bytes == sum(len(one) for batch in batches for one in batch)
    assert (found.first_wall_ns, found.last_wall_ns) == (SECOND_NS, 10 * SECOND_NS)
    segments = list(quick_path.glob("*.wal"))
    assert (found.segments, found.file_bytes) == (len(segments), sum(path.stat().st_size for path in segments))
    assert found.segments > 1
    assert found.frames_by_kind["events"] == 10
    assert found.frames_by_kind["capture"] == found.segments
    assert found.frames_by_kind["seal"] == found.segments - 1
    assert found.frames == sum(found.frames_by_kind.values())
    assert (found.boots, found.segments_poisoned) == (1, 0)


def test_frame_sizes_are_told_by_their_quantiles(quick_path):
    """Ninety-nine small frames and a large one: the median is one block, the maximum is the large frame."""
    with begin(Journal.open(quick_path)) as journal:
        for n in range(99):
            commit(journal, [event(n)], step=n)
        commit(journal, [event(99, size=9_000)], step=99)

    sizes = summarize(quick_path).frame_sizes
    assert sizes is not None
    assert (sizes.least, sizes.median, sizes.p99, sizes.most) == (4096, 4096, 4096, 12_288)


def test_a_journal_without_events_has_figures_too(quick_path):
    """With only a capture there are no sizes and no times, and no division by zero."""
    begin(Journal.open(quick_path, segment_bytes=65_536)).close()

    found = summarize(quick_path)
    assert (found.events, found.steps, found.bytes_a_step, found.events_a_frame) == (0, 0, None, 0.0)
    assert (found.first_wall_ns, found.frame_sizes) == (0, None)


def test_a_segment_begun_after_a_failed_write_is_counted(quick_path):
    """One write fails: one segment is counted as poisoned, and the void bytes are not counted."""
    files = FaultyFiles("pwrite", 1 << 30, 1 << 30, 5)
    with begin(Journal.open(quick_path, segment_bytes=65_536, files=files)) as journal:
        commit(journal, [event(0)])
        files.first = files.last = files.count + 1
        commit(journal, [event(1)])

    found = summarize(quick_path)
    assert (found.segments, found.segments_poisoned, found.events) == (2, 1, 2)


def test_where_there_is_no_journal_there_are_no_figures(quick_path):
    """A folder without a journal raises an error that names it."""
    with pytest.raises(JournalMissing):
        summarize(quick_path / "nothing")
