"""Telemetry and logs may be lost, never the run; what is lost is counted in the journal."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from tests.daemon.harness import of_type
from tests.recorded import events_of
from tolariad.core import messages as m
from tolariad.core.calc.health.histogram import Bucket
from tolariad.daemon import live
from tolariad.daemon.live import Host


async def test_what_the_daemon_spends_is_told_once_a_minute(monkeypatch):
    """Not only at its end; a minute without measurements is no event."""
    assert live._SPENDING_TOLD_S == 60.0
    monkeypatch.setattr(live, "_SPENDING_TOLD_S", 0.001)
    tally = m.BudgetHistogram(budget="journal_append", count=1, breaches=0, worst=2.0, counts=(Bucket(386, 1),))
    spent, told, seen = [(), (tally,), ()], [], asyncio.Event()
    daemon = SimpleNamespace(
        _kernel=SimpleNamespace(submit=told.append),
        _spending=SimpleNamespace(taken=lambda: spent.pop(0) if spent else seen.set()),
        _flush_spending=lambda: Host._flush_spending(daemon),
    )
    telling = asyncio.create_task(Host._tell_spending(daemon))
    async with asyncio.timeout(30):
        await seen.wait()
    telling.cancel()

    assert told == [m.BudgetsReported(tallies=(tally,))]


def test_a_stderr_that_nobody_reads_holds_nothing_up(start, run_dir):
    """The trainer prints ten megabytes, the daemon's stderr is a full pipe: the run completes and the process ends."""
    daemon = start(environ={"FAKE_TRAINER": "flood@5"})
    assert daemon.process.wait(timeout=60) == 0
    assert of_type(run_dir, m.RunCompleted)
    assert len(events_of(run_dir)) > 30
    assert (run_dir / "logs" / "trainer.log").stat().st_size > 1_000_000


def test_a_defect_of_a_measurement_does_not_reach_the_recorder(caplog):
    """The recorder's thread measures; an exception of the measurement must not freeze the run."""
    shown = []
    daemon = SimpleNamespace(_publications=SimpleNamespace(publish=shown.append), _spending=None)
    Host._publish(daemon, published := SimpleNamespace(events=(), write_ns=1))

    assert shown == [published]
    assert "could not be measured" in caplog.text
