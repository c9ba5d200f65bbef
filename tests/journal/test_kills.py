"""Fault class 8: SIGKILL at random times on a real file system; another process counts the acknowledgements."""

from __future__ import annotations

import pytest

from tests.torture.journal_kills import kill_many


def run(folder, kills, seed):
    counts = kill_many(folder, kills, seed)
    print(f"class 8, seed {seed}: " + ", ".join(f"{name}: {number}" for name, number in counts.items()))
    return counts


def test_thirty_kills_lose_no_acknowledged_event(tmp_path, seed):
    """30 writers of one journal are killed at drawn moments: acknowledged events lost 0, wrong events 0."""
    counts = run(tmp_path / "journal", 30, seed)

    assert (counts["lost"], counts["wrong"], counts["not clean at the end"]) == (0, 0, 0)
    assert counts["events"] > 0


@pytest.mark.torture
def test_a_thousand_kills_lose_no_acknowledged_event(tmp_path, seed):
    """The same with 1 000 writers."""
    counts = run(tmp_path / "journal", 1000, seed)

    assert (counts["lost"], counts["wrong"], counts["not clean at the end"]) == (0, 0, 0)
    assert counts["events"] > 1000
