"""The textual shell: keys ask before they order, a note asks for its text, a choice of runs, another size."""

from __future__ import annotations

import pytest

from tests.cli.watching.test_picture import view_of
from tolariad.cli import runs
from tolariad.cli.errors import CommandError, Exit
from tolariad.cli.watching import app as app_module
from tolariad.cli.watching.app import Choice, Lines, NoteText, Question, WatchApp
from tolariad.cli.watching.view import View


class QuietFeed:
    """A feed that shows nothing: the test does."""

    def __init__(self, target, show, *, interval_s):
        self.target, self.is_closed = target, False

    def run(self):
        return

    def close(self):
        self.is_closed = True

    def look_now(self):
        return


@pytest.fixture
def watching(monkeypatch, recorder, run_dir):
    """Return an app whose orders go into the list `given`, and a view of a live run."""
    monkeypatch.setattr(app_module, "Feed", QuietFeed)
    given = []

    def give(target, method, parameters, show):
        given.append((method, dict(parameters)))
        if method == "Checkpoint":
            raise CommandError(Exit.REFUSED, "WrongPhase: the run is starting")
        show({"method": method, "seq": 7, "outcome": None})

    target = runs.Target(run_dir, run_dir / "control.sock")
    return WatchApp([target], give=give), view_of(recorder), given


def text_of(app):
    lines = app.screen_stack[0].query_one(Lines)
    return [lines.render_line(y).text.rstrip() for y in range(app.size.height)]


async def test_an_order_is_given_only_after_a_yes(watching):
    """`p` asks: n gives nothing, y gives the order; its answer, or its refusal, is shown."""
    app, view, given = watching
    async with app.run_test(size=(80, 24)) as pilot:
        app.show(view)
        for key in ("p", "n", "p", "x", "r", "escape"):
            await pilot.press(key)
        assert given == []
        await pilot.press("p")
        assert isinstance(app.screen, Question)
        await pilot.press("y")
        await app.workers.wait_for_complete()
        assert given == [("Pause", {})]
        assert text_of(app)[-2] == "pause: recorded as event 7"
        await pilot.press("c", "y")
        await app.workers.wait_for_complete()
        assert text_of(app)[-2] == "WrongPhase: the run is starting"


async def test_a_note_asks_for_its_text(watching):
    """Enter records it; Escape, and an empty text, record nothing. The letters of the keys are text meanwhile."""
    app, view, given = watching
    async with app.run_test(size=(80, 24)) as pilot:
        app.show(view)
        await pilot.press("n", "q", "escape", "n", "enter")
        assert given == []
        await pilot.press("n")
        assert isinstance(app.screen, NoteText)
        await pilot.press("p", "q", "enter")
        await app.workers.wait_for_complete()
        assert given == [("Note", {"text": "pq"})]


async def test_without_a_daemon_no_key_orders(watching):
    """The screen says why."""
    app, view, given = watching
    async with app.run_test(size=(80, 24)) as pilot:
        app.show(View(where=view.where, link="The run has ended.", status=view.status))
        await pilot.press("p", "y", "n")
        assert given == []
        assert text_of(app)[-2] == "No order can be given: no daemon answers."


async def test_the_screen_takes_another_size(watching):
    """As many lines as the terminal has, at once."""
    app, view, _ = watching
    async with app.run_test(size=(80, 24)) as pilot:
        app.show(view)
        await pilot.resize_terminal(60, 30)
        await pilot.pause()
        assert len(text_of(app)) == 30
        assert text_of(app)[-1].startswith("p pause")


async def test_one_of_several_runs_is_chosen(monkeypatch, tmp_path):
    """A list with their folders; Enter takes one; q ends and closes the feed."""
    monkeypatch.setattr(app_module, "Feed", QuietFeed)
    targets = [runs.Target(tmp_path / name, tmp_path / name / "control.sock") for name in ("a\x1b[2J", "b")]
    app = WatchApp(targets)
    async with app.run_test(size=(80, 24)) as pilot:
        assert isinstance(app.screen, Choice)
        await pilot.press("down", "enter")
        assert app._feed.target == targets[1]
        await pilot.press("q")
    assert app._feed.is_closed
    assert app.return_code == 0
