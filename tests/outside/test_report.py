"""The page of a run in Chromium: its script draws, and the page's own policy allows it."""

from __future__ import annotations

import re

import pytest

from tests.forensics.differences.written import events_of_a_run, write
from tests.outside.servers import rendered
from tolariad.core import messages as m
from tolariad.forensics.report.gathering import gathered
from tolariad.forensics.report.page import page

pytestmark = pytest.mark.outside

HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"


def test_chromium_draws_every_curve_and_runs_nothing_of_the_runs(tmp_path):
    """Each chart has a canvas; a hostile name of run and note is shown as text, and no script of theirs has run."""
    events = events_of_a_run(tmp_path / "made")
    hostile = [*events, m.NoteAdded(text=HOSTILE, actor=m.Actor(program=HOSTILE))]
    runs = [gathered(write(tmp_path / name, given), HOSTILE) for name, given in (("a", events), ("b", hostile))]
    (tmp_path / "report.html").write_text(page(runs), encoding="utf-8")
    shown = rendered(f"file://{tmp_path}/report.html", tmp_path)

    drawn = int(re.search(r'data-drawn="(\d+)"', shown)[1])
    assert drawn == len({name for run in runs for name in run.curves["line"]}) == shown.count("<canvas")
    assert "<title>taken" not in shown
    assert "<img" not in shown
