"""Telemetry and logs may be lost, never the run; what is lost is counted in the journal."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from tests.daemon.harness import SETS, events, of_type
from tolariad.core.control.words import TelemetryDropped
from tolariad.core.health.budget_words import Bin, Tally
from tolariad.core.health.stability_words import ConservativeModeEntered
from tolariad.core.inputs import BudgetsTold, TelemetryCounted
from tolariad.core.rollback.words import EmergencyRaised, Level
from tolariad.core.run.words import RunCompleted
from tolariad.core.settings.model import Settings
from tolariad.core.state import RunState
from tolariad.core.steps.words import EpochStarted
from tolariad.daemon import live
from tolariad.daemon.live import Daemon
from tolariad.daemon.spending import Spending
from tolariad.telemetry import MemorySink, TelemetryCollector


def test_dropped_telemetry_is_counted_in_the_journal(start, run_dir):
    """With room for one message the first turn's second event pushes out the first; the journal says how many."""
    daemon = start(task="digits", epochs=1, sets=[*SETS, "integration.oona_backpressure_limit=1"])
    assert daemon.wait() == 0, daemon.stderr
    counted = of_type(run_dir, TelemetryDropped)
    assert counted
    assert sum(counted[0].dropped.values()) >= 1
    assert all(one.skippable for one in counted)


async def test_drops_are_counted_once_a_minute_while_the_run_goes_on(monkeypatch):
    """Not only at its end; a minute without drops is no event."""
    assert live._TELEMETRY_COUNT_S == 60.0
    monkeypatch.setattr(live, "_TELEMETRY_COUNT_S", 0.001)
    tally = Tally(budget="journal_append", count=1, breaches=0, worst=2.0, counts=(Bin(386, 1),))
    spent = [(), (tally,)]
    dropped, told, seen = [{}, {"LOW": 2}, {}, {"LOW": 1, "HIGH": 3}], [], asyncio.Event()
    daemon = SimpleNamespace(
        _telemetry=SimpleNamespace(take_dropped=lambda: dropped.pop(0) if dropped else seen.set()),
        _kernel=SimpleNamespace(submit=told.append),
        _spending=SimpleNamespace(taken=lambda: spent.pop(0) if spent else ()),
    )
    daemon._count_dropped = lambda: Daemon._count_dropped(daemon)
    counting = asyncio.create_task(Daemon._count_telemetry(daemon))
    async with asyncio.timeout(30):
        await seen.wait()
    counting.cancel()

    assert told == [
        TelemetryCounted(dropped={"LOW": 2}),
        BudgetsTold(tallies=(tally,)),
        TelemetryCounted(dropped={"LOW": 1, "HIGH": 3}),
    ]


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
    daemon = SimpleNamespace(
        _publications=SimpleNamespace(publish=shown.append), _telemetry=None, _spending=Spending(Settings())
    )
    published = SimpleNamespace(events=((1, RunCompleted(step=1, epochs=1, checkpoint="c")),), write_ns=1)
    Daemon._publish(daemon, published)

    assert shown == [published]


@pytest.mark.parametrize(("since", "kept"), [(None, 40), (1, 4)])
def test_in_conservative_mode_the_daemon_samples_what_is_not_important(since, kept):
    """By the durable state of each turn; what a rollback or an emergency says is never left out."""
    state = RunState()
    state = replace(state, stability=replace(state.stability, since=since))
    daemon = SimpleNamespace(
        _publications=SimpleNamespace(publish=lambda _: None),
        _telemetry=TelemetryCollector(MemorySink()),
        _spending=Spending(Settings()),
    )
    grave = (EmergencyRaised(level=Level.SEVERE, why="loss"), ConservativeModeEntered(why="loss"))
    for _ in range(40):
        events = ((1, EpochStarted(epoch=1)), *((2, one) for one in grave))
        Daemon._publish(daemon, SimpleNamespace(state=state, events=events, write_ns=1))

    assert daemon._telemetry.waiting == kept + 2 * 40
