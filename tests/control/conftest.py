"""Fixtures: a recorder with a run that trains, and a server over it."""

from __future__ import annotations

import pytest

from tests.control.fakes import LOOPS, Recorder, Served


@pytest.fixture
def recorder(run_dir):
    made = Recorder(run_dir / "journal", segment_bytes=1 << 20)
    made.begin_run()
    made.step()
    yield made
    made.journal.close()


@pytest.fixture(params=sorted(LOOPS))
def served(recorder, run_dir, request):
    """Run the server on both event loops: uvloop is optional."""
    with Served(recorder, run_dir, loop_factory=LOOPS[request.param]) as server:
        yield server
