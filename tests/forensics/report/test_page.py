"""The page of a run loads nothing, runs nothing but its own script, and shows any name as text."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources

import pytest

from tests.forensics.differences.written import events_of_a_run, step_at, write
from tolariad.core import messages as m
from tolariad.forensics.report.gathering import gathered
from tolariad.forensics.report.page import page

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[2J'\"&"


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    """The events of a run of 30 steps."""
    return events_of_a_run(tmp_path_factory.mktemp("run") / "journal")


def rolled_back(events):
    """The run goes back from step 25 to step 20, and makes steps 21 to 25 again."""
    at = step_at(events, 25) + 1
    back = m.RolledBack(rollback="r1", checkpoint="c3", branch=1, parent=0, step=20, epoch=3, batch=0, from_step=25)
    again = [
        m.StepCompleted(step=n, epoch=3, batch=n - 20, loss=0.75, grad_norm=1.0, lr=0.1, rates=1, branch=1)
        for n in range(21, 26)
    ]
    return [*events[:at], back, *again]


def test_the_policy_allows_the_pages_own_script_and_style_alone(events, tmp_path):
    """Each is named by its hash; nothing may be loaded, and nothing is asked for."""
    text = page([gathered(write(tmp_path / "j", events), "run")])
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    inline = re.findall(r"<(?:script|style)>(.*?)</(?:script|style)>", text, re.DOTALL)

    assert policy.startswith("default-src 'none'")
    assert len(inline) == 3
    for one in inline:
        assert base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() in policy
    assert re.findall(r"""(?:src|href)\s*=\s*["']""", re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)) == []
    assert not re.search(r"<[^>]*\son[a-z]+\s*=", re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL))


def test_the_library_is_the_one_that_was_published():
    """uPlot 1.6.32 as npm has it, with its licence beside it."""
    place = resources.files("tolariad.forensics.report").joinpath("vendor")
    found = hashlib.sha256(place.joinpath("uPlot.iife.min.js").read_bytes()).hexdigest()

    assert found == "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"
    assert "MIT License" in place.joinpath("LICENSE").read_text(encoding="utf-8")


def test_a_hostile_name_is_text(events, tmp_path):
    """Of the run, of a metric, of a note: no element, no control character."""
    named = [*events[:20], m.MetricsNamed(names=(HOSTILE,)), m.NoteAdded(text=HOSTILE, actor=m.Actor(program=HOSTILE))]
    named += [m.StepCompleted(step=99, epoch=9, batch=1, loss=1.0, grad_norm=1.0, lr=0.1, rates=1, metrics=(3.0,))]
    text = page([gathered(write(tmp_path / "j", named), HOSTILE)])

    assert "<script>alert" not in text
    assert "<img" not in text
    assert "\x1b" not in text
    assert "&lt;img src=x onerror=alert(2)&gt;" in text
    assert text.count("<script") == 3


def test_a_rollback_is_a_mark_and_both_orders_are_there(events, tmp_path):
    """The run as it stands has 25 steps; 30 were executed."""
    found = gathered(write(tmp_path / "j", rolled_back(events)), "run")

    assert len(found.curves["line"]["loss"].x) == 25
    assert len(found.curves["executed"]["loss"].x) == 30
    (mark,) = [one for one in found.happenings.marks if one.kind == "rollback"]
    assert (mark.step, mark.row) == (25, 25)
    assert "data-axis" in page([found])
    assert "data-axis=" not in page([gathered(write(tmp_path / "plain", events), "run")])


def test_two_runs_are_drawn_over_each_other(events, tmp_path):
    """Both curves are in one picture, and the verdict comes first."""
    runs = [gathered(write(tmp_path / name, given), name) for name, given in (("a", events), ("b", events[:40]))]
    text = page(runs, ["missing: b lacks step 21."])

    assert text.index("missing: b lacks step 21.") < text.index("<h2>")
    first = text[text.index("<svg viewBox") : text.index("</svg>")]
    assert ('class="a"' in first, 'class="b"' in first) == (True, True)


def test_tables_have_checkpoints_orders_and_lost_work(events, tmp_path):
    """With who ordered what, and how many steps were given up."""
    note = m.NoteAdded(text="lowered the rate", actor=m.Actor(uid=1000, program="tolaria", reason="norm drifts"))
    found = gathered(write(tmp_path / "j", [*rolled_back(events), note]), "run")
    by_title = {one.title: one for one in found.happenings.tables}

    assert [row[1] for row in by_title["Checkpoints"].rows] == ["c000001", "c000002", "c000003"]
    assert "step 20" in by_title["Lost work"].rows[-1][3]
    assert by_title["Orders and notes"].rows[-1][4] == "(by tolaria, uid 1000: norm drifts)"
    assert sum(found.happenings.spent.values()) > 0
