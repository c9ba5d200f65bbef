"""Durable events reach listeners in order, with few wake-ups; a display that blocks delays nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

from tolariad.control.replies import RunStatus
from tolariad.control.status import Heartbeat, LiveFacts, run_status
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.state.run_state import RunState
from tolariad.daemon.port import Publications
from tolariad.daemon.showing import Showing
from tolariad.kernel import Published


def a_status(beat_age_s: float | None = None) -> RunStatus:
    """Return a run in its second epoch."""
    state = RunState(
        run=st.Run(phase=st.Phase.RUNNING, policy=m.Policy(epochs=5)),
        progress=st.Progress(step=12, epoch=2, loss=0.25, metrics={"accuracy": 0.5}),
        trainer=st.Trainer(incarnation=1, alive=True, pid=1),
    )
    beat = Heartbeat() if beat_age_s is None else Heartbeat(step=12, age_s=beat_age_s, activity="step")
    return run_status(state, str(Path("run")), LiveFacts(pid=1, wall_ns=0, mono_ns=0, heartbeat=beat))


def published(seq: int, *effects: m.ExitDaemon, phase: st.Phase = st.Phase.RUNNING) -> Published:
    state = RunState(seq=seq, run=st.Run(phase=phase))
    return Published(state, ((seq, m.NoteAdded(text=str(seq))),), effects, None)


async def test_listeners_hear_everything_in_order_in_few_turns():
    """A thousand turns from another thread: every event once, ascending, in far fewer calls than turns."""
    publications = Publications(asyncio.get_running_loop(), lambda _: None)
    calls: list[list[int]] = []
    end = publications.subscribe(lambda change: calls.append([seq for seq, _ in change.events]))

    def turns() -> None:
        for seq in range(1, 1001):
            publications.publish(published(seq))

    # The loop is held meanwhile, as by a busy client.
    thread = threading.Thread(target=turns)
    thread.start()
    thread.join()
    await asyncio.sleep(0.05)
    assert [seq for call in calls for seq in call] == list(range(1, 1001))
    assert len(calls) < 10
    end()
    end()
    publications.publish(published(1001))
    await asyncio.sleep(0.02)
    assert calls[-1][-1] == 1000
    assert not publications.has_listeners


async def test_a_broken_listener_costs_only_itself(caplog):
    """A listener that raises is logged; the others receive everything."""
    publications = Publications(asyncio.get_running_loop(), lambda _: None)
    heard: list[int] = []
    publications.subscribe(lambda _: 1 / 0)
    publications.subscribe(lambda change: heard.extend(seq for seq, _ in change.events))
    for seq in (1, 2):
        publications.publish(published(seq))
        await asyncio.sleep(0.02)
    assert heard == [1, 2]
    assert "ZeroDivisionError" in caplog.text


async def test_only_what_matters_wakes_the_loop():
    """Effects, a new phase and a failure wake the loop; an ordinary step does not."""
    heard: list[int] = []
    publications = Publications(asyncio.get_running_loop(), lambda turn: heard.append(turn.state.seq))
    publications.publish(published(1))
    publications.publish(published(2))
    publications.publish(published(3, m.ExitDaemon(code=0)))
    publications.publish(published(4, phase=st.Phase.PAUSED))
    publications.publish(published(5, phase=st.Phase.PAUSED))
    publications.publish(Published(RunState(seq=6, run=st.Run(phase=st.Phase.PAUSED)), (), (), "no space"))
    await asyncio.sleep(0.02)
    assert heard == [1, 3, 4, 6]


def test_a_display_that_blocks_is_left_behind():
    """Ending the display does not wait for a terminal that never takes the text."""
    blocks, release = threading.Event(), threading.Event()
    showing = Showing(lambda _: (blocks.set(), release.wait(60)), a_status)
    assert blocks.wait(60)
    started = time.monotonic()
    showing.end(0.1)
    assert time.monotonic() - started < 30
    release.set()


def test_a_display_shows_the_end(caplog):
    """The last state is shown when the display is ended; a defect of the display is logged once and costs nothing."""
    shown: list[RunStatus] = []
    Showing(shown.append, a_status).end(60.0)
    assert shown[-1].step == 12

    def broken(_: RunStatus) -> None:
        raise ValueError("no such colour")

    Showing(broken, a_status).end(60.0)
    assert "the run goes on without it" in caplog.text
