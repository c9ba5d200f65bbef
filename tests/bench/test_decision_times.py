"""What a decision costs, printed beside what it cost before decisions were reactions."""

from __future__ import annotations

import io
import os
import statistics
import subprocess
import sys
import tarfile

import msgspec
import pytest

from tests.core.reactions.recording import KEPT
from tests.house.tree import ROOT

pytestmark = pytest.mark.bench

# The last commit whose decisions were sequenced by hand; TOLARIA_OLD names another one.
OLD = os.environ.get("TOLARIA_OLD", "17ec888")
TURNS = 3


def old_tree(folder) -> bool:
    """Put the old `tolariad` into the folder; False if this checkout has no such commit."""
    command = ["git", "-C", str(ROOT), "archive", OLD, "tolariad", "journal"]
    packed = subprocess.run(command, capture_output=True)
    if packed.returncode:
        return False
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return True


def times(*paths) -> dict[str, float]:
    """One run with this path."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, "-m", "tests.bench.decision_times", str(KEPT)]
    done = subprocess.run(command, capture_output=True, env=environment, cwd=ROOT / "docs", check=True)
    return msgspec.json.decode(done.stdout, type=dict[str, float])


def test_a_step_costs_no_more_than_before(tmp_path, capsys):
    """Interleaved runs of both versions over the same recorded decisions; the step's path is the one that counts."""
    if not old_tree(tmp_path):
        pytest.skip(f"this checkout has no commit {OLD}")
    before, now = [], []
    for _ in range(TURNS):
        before.append(times(tmp_path, ROOT))
        now.append(times(ROOT))

    def ns(runs, name):
        return statistics.median(run[name] for run in runs)

    with capsys.disabled():
        print(f"\n{'ns, decided, stamped and folded':<36}{OLD:>10}{'now':>10}")
        for name in now[0]:
            print(f"{name:<36}{ns(before, name):>10.0f}{ns(now, name):>10.0f}")
    assert ns(now, "a step") < 2 * ns(before, "a step")
