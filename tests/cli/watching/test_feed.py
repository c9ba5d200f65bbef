"""Following a run: live, ended, started again, without an answer; hostile journals. Each round is one call."""

from __future__ import annotations

import pytest

from tests.cli.hostile import make, real_events
from tests.cli.stored import record
from tests.control.fakes import Served
from tolariad.cli import runs
from tolariad.cli.watching.feed import Feed, _link
from tolariad.cli.watching.picture import picture, plain
from tolariad.control.where import socket_of
from tolariad.core import messages as m


def following(folder):
    """Return a feed, and the list of the views that it gives."""
    shown = []
    return Feed(runs.Target(folder, socket_of(folder)), shown.append), shown


def test_a_live_run_is_followed_until_it_has_ended_and_again_when_it_is_started(recorder, run_dir):
    """Status, rates and curves; after the end the last state and the reason; then live again, with the new steps."""
    feed, shown = following(run_dir)
    with Served(recorder, run_dir) as served:
        feed.step()
        assert (shown[-1].link, shown[-1].status["step"], shown[-1].status["live"]) == ("", 12, True)
        assert shown[-1].rates.step == 12
        assert shown[-1].breakers == ()
        assert [panel.title for panel in shown[-1].panels] == ["loss", "accuracy"]
        assert [one.id for one in shown[-1].checkpoints] == ["c000001", "c000002"]
        served.do(recorder.step)
        feed.step()
        assert shown[-1].status["step"] == 13
        served.do(lambda: recorder.record(m.RunStopped(step=13, mode=m.StopMode.GRACEFUL, checkpoint="c000002")))
    feed.step()
    assert "The run has ended (stopped)" in shown[-1].link
    assert (shown[-1].status["phase"], shown[-1].status["live"]) == ("stopped", False)
    count = len(shown)
    feed.step()
    assert len(shown) == count, "nothing changed, so nothing is shown again"
    with Served(recorder, run_dir) as served:
        served.do(recorder.step)
        for _ in range(5):
            feed.step()
        assert (shown[-1].link, shown[-1].status["live"]) == ("", True)


def test_a_run_without_a_daemon_is_shown_with_its_last_state(dead_run):
    """From the journal; if the run's process is known to be dead, the screen says so."""
    feed, shown = following(dead_run)
    feed.step()

    assert shown[-1].status["step"] == 12
    assert "No daemon answers" in shown[-1].link
    assert "was killed" in _link({"phase": "running", "dead": True}, "nobody")
    assert shown[-1].panels


def test_without_daemon_and_journal_the_screen_says_why(tmp_path):
    """The path of the socket, and that it is asked again."""
    feed, shown = following(tmp_path)
    feed.step()

    assert shown[-1].status is None
    assert "is asked again" in shown[-1].link
    assert "control.sock" in shown[-1].link


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    return real_events(record(tmp_path_factory.mktemp("real")))


@pytest.mark.parametrize("count", [4, pytest.param(200, marks=pytest.mark.torture)])
def test_journals_that_no_run_has_written_are_shown(quick_path, real, seed, count):
    """Impossible fields, unknown types, no maps: each gives a screen without control characters."""
    for number in range(count):
        feed, shown = following(make(quick_path / f"r{number}", f"{seed} {number}", real))
        feed.step()
        feed.step()
        for view in shown:
            for line in plain(picture(view, 80, 24)):
                assert line.isprintable(), (number, ascii(line))
