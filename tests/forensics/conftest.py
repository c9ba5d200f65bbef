"""Fixtures: a real journal of a run with some epochs, a pause, a death and a checkpoint."""

from __future__ import annotations

import pytest

from journal.reader import Reader
from tests.control.fakes import Recorder
from tolariad.core import messages as m


@pytest.fixture
def recorder(run_dir):
    """Small segments, so that captures and segment borders occur."""
    made = Recorder(run_dir / "journal", segment_bytes=128 * 1024)
    made.begin_run(epochs=5)
    for _ in range(15):
        made.step()
    made.take(m.CommandReceived(command=m.Pause(reason="lunch"), actor=m.Actor(uid=1000, pid=7, program="tolaria")))
    made.hold()
    made.take(m.CommandReceived(command=m.Resume(), actor=m.Actor(uid=1000, pid=8, program="tolaria")))
    for _ in range(3):
        made.step()
    made.take(m.TrainerGone(incarnation=1, reason=m.DeathReason.SIGNAL, pid=5001, signal="SIGSEGV", output="boom\n"))
    made.spawn_trainer()
    made.report(m.TrainingStartedReport(step=10, checkpoint="c000002"))
    made.report(m.RerunReport(first=11, last=18, compared=8))
    for _ in range(7):
        made.step()
    yield made
    made.journal.close()


@pytest.fixture
def reader(recorder):
    with Reader(recorder.journal.folder) as opened:
        yield opened
