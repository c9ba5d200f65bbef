"""Telemetry and logs may be lost, never the run; what is lost is counted in the journal."""

from __future__ import annotations

from types import SimpleNamespace

from tests.daemon.harness import SETS, events, of_type
from tolariad.core.vocabulary.control import TelemetryDropped
from tolariad.core.vocabulary.run import RunCompleted
from tolariad.daemon.live import Daemon


def test_dropped_telemetry_is_counted_in_the_journal(start, run_dir):
    """With room for one message the first turn's second event pushes out the first; the journal says how many."""
    daemon = start(task="digits", epochs=1, sets=[*SETS, "integration.oona_backpressure_limit=1"])
    assert daemon.wait() == 0, daemon.stderr
    counted = of_type(run_dir, TelemetryDropped)
    assert counted
    assert sum(counted[0].dropped.values()) >= 1
    assert all(one.skippable for one in counted)


def test_a_stderr_that_nobody_reads_holds_nothing_up(start, run_dir):
    """The trainer prints ten megabytes, the daemon's stderr is a full pipe: the run completes and the process ends."""
    daemon = start(environ={"FAKE_TRAINER": "flood@5"})
    assert daemon.process.wait(timeout=60) == 0
    assert of_type(run_dir, RunCompleted)
    assert len(events(run_dir)) > 30
    assert (run_dir / "logs" / "trainer.log").stat().st_size > 1_000_000


def test_a_defect_of_telemetry_does_not_reach_the_recorder():
    """It is the recorder's thread that offers it events: what it raises must not freeze the run."""
    shown = []
    daemon = SimpleNamespace(_publications=SimpleNamespace(publish=shown.append), _telemetry=None)
    published = SimpleNamespace(events=((1, RunCompleted(step=1, epochs=1, checkpoint="c")),))
    Daemon._publish(daemon, published)

    assert shown == [published]
