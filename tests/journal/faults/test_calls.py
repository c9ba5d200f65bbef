"""Fault class 5: system calls fail under the real writer, by a preloaded library."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from tests.journal.faults.harness import told
from tests.journal.faults.preloaded import Campaign, Forks, all_cases, build, drawn

pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None, reason="gcc is needed to build the library that is preloaded"
)


@pytest.fixture
def forks(tmp_path):
    """The process that has loaded the library."""
    process = Forks(build(tmp_path))
    yield process
    process.close()


def check(counts: Counter[str], cases: int) -> None:
    assert (counts["lost"], counts["wrong"], counts["defects"]) == (0, 0, 0)
    assert counts["cases"] == cases
    # The faults did strike: the writer died of some, froze at some, outlived some.
    for what in ("killed", "failed or refused", "went on", "torn start", "unclean start"):
        assert counts[what] > 0, what
    assert counts["reached"] > cases // 10


def test_a_hundred_failing_calls_lose_nothing_acknowledged(forks, quick_path, seed):
    """100 faults drawn from all calls, errors and places: acknowledged events lost 0, wrong events 0."""
    counts = Campaign(forks, quick_path, seed).run(drawn(100, seed))

    print(told("class 5", seed, counts))
    check(counts, 100)


@pytest.mark.torture
def test_every_failing_call_loses_nothing_acknowledged(forks, seed, tmp_path):
    """All faults, on the file system of temporary files."""
    cases = all_cases()
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        counts = Campaign(forks, Path(folder), seed).run(cases)

    print(told("class 5, all", seed, counts))
    check(counts, len(cases))
