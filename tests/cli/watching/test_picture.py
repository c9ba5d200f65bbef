"""The screen as a function of a view: it fits any terminal, and shows what matters."""

from __future__ import annotations

import random
import re

import msgspec
import pytest

from tests.cli.hostile import CONTROLS
from tests.control.fakes import Recorder
from tolariad.cli import output
from tolariad.cli.plot import Curve, Panel
from tolariad.cli.watching.picture import Curves, picture, plain
from tolariad.cli.watching.seen import SeenCheckpoint
from tolariad.cli.watching.view import View
from tolariad.cli.wrapping import width
from tolariad.control.reply_tables import RateGroup, RateTable
from tolariad.core import messages as m

PANELS = (
    Panel("loss", [Curve("loss", [[(step, 2.0 / step) for step in range(1, 300)]], 0)]),
    Panel("accuracy", [Curve("accuracy", [[(10, 0.5), (20, 0.75), (30, 0.9)]], 0)]),
)

RATES = RateTable(
    step=12,
    conservative=False,
    violations=0,
    groups=(
        RateGroup(name="default", policy="cosine", base=0.003, now=0.003, next=0.0025, waiting=0),
        RateGroup(name="head", policy="constant", base=0.01, now=0.01, next=0.01, waiting=0, frozen=True),
    ),
)


def view_of(recorder, **fields):
    status = output.printable(msgspec.to_builtins(recorder.status()))
    given = {"where": "runs/digits", "status": status, "rates": RATES, "panels": PANELS, "breakers": ()}
    return View(**{**given, **fields})


@pytest.fixture
def view(recorder):
    recorder.record(m.ConservativeModeEntered(why="open breaker: lr"))
    checkpoints = (SeenCheckpoint("c000001", 0, 100), SeenCheckpoint("c000002", 10, 100, "promoted"))
    return view_of(recorder, breakers=("lr_update",), checkpoints=checkpoints)


def test_a_terminal_of_80_by_24_shows_everything(view):
    """Phase, progress, two curves, rates, checkpoints, breakers, the mode, the last sentences, the keys."""
    lines = plain(picture(view, 80, 24))
    text = "\n".join(lines)

    assert lines[0] == "digits  running  runs/digits"
    assert "epoch 2/3  step 12/30  40 %  loss 0.5" in lines[1]
    assert "loss, logarithmic" in lines[2]
    assert "accuracy" in lines[2]
    assert any("⠁" <= character <= "⣿" for character in text)
    assert "rates       default 0.0025 (cosine), head 0.01 (frozen)" in text
    assert "checkpoints c000002 at step 10, 100 B, promoted; c000001 at step 0, 100 B" in text
    assert "breakers    open: lr_update" in text
    assert "mode        conservative for" in text
    assert "  Conservative mode" in text
    assert lines[-1] == "p pause   r resume   c checkpoint   n note   q quit"


def test_any_size_gets_as_many_lines_none_wider(view, seed):
    """Drawn sizes, from one cell to a large screen; without a status too."""
    drawn = random.Random(seed)
    for _ in range(30):
        columns, rows = drawn.randint(1, 200), drawn.randint(1, 70)
        for one in (view, View(where="runs/digits", link="No answer from the run yet.")):
            lines = plain(picture(one, columns, rows, said="pause: recorded as event 12"))
            assert len(lines) == rows
            assert max(map(width, lines)) <= columns


def test_no_text_of_a_run_controls_the_terminal(run_dir):
    """Names, notes, rates, reasons and the user's own order hold escape sequences; wide characters keep the width."""
    made = Recorder(run_dir / "journal", segment_bytes=1 << 20)
    made.begin_run(name=f"实验{CONTROLS}" * 5)
    made.record(
        m.EmergencyRaised(level=m.Level.MAJOR, why=CONTROLS * 40),
        m.NoteAdded(text=CONTROLS),
        m.RunFailed(kind=m.FailureKind.TRAINER, why=f"实验{CONTROLS}" * 30),
    )
    status = msgspec.to_builtins(made.status())
    made.journal.close()
    panels = (Panel(CONTROLS, [Curve(CONTROLS, [[(1, 1.0), (2, 3.0)]], 0)]),)
    checkpoints = (SeenCheckpoint(CONTROLS, 1, 1, CONTROLS),)
    view = View(
        where=CONTROLS, link=CONTROLS, status=status, panels=panels, breakers=(CONTROLS,), checkpoints=checkpoints
    )
    for columns, rows in ((80, 24), (40, 12), (200, 60)):
        for line in plain(picture(view, columns, rows, said=CONTROLS)):
            assert line.isprintable(), ascii(line)
            assert width(line) <= columns


def test_a_run_that_is_not_live_says_so_and_offers_no_orders(view):
    """The reason stands below the figures; of the keys only q is left."""
    lines = plain(picture(msgspec.structs.replace(view, link="The run has ended (completed)."), 80, 24))

    assert lines[2] == "The run has ended (completed)."
    assert lines[-1] == "q quit"


def test_curves_are_drawn_again_only_if_they_or_the_size_changed(view):
    """The same panels give the same lines; another size or another tuple of panels is drawn."""
    curves = Curves()
    first = curves.drawn(view.panels, 80, 10)

    assert curves.drawn(view.panels, 80, 10) is first
    assert curves.drawn(view.panels, 90, 10) is not first
    assert curves.drawn((view.panels[0],), 90, 10) != curves.drawn(view.panels, 90, 10)


def test_a_sentence_is_never_shown_without_its_beginning(recorder):
    """On any screen the first line of the sentences has a time of day; the newest sentence is among them."""
    back = {"checkpoint": "c000002", "branch": 1, "parent": 0, "step": 10, "epoch": 1, "batch": 10}
    for n in range(1, 8):
        recorder.record(m.RolledBack(rollback=f"r{n}", from_step=10 + n, why=f"reason {n}: " + "long " * 30, **back))
    view = view_of(recorder)
    for rows in range(14, 60):
        lines = plain(picture(view, 60, rows))
        below = lines[next(n for n, line in enumerate(lines) if line.startswith("breakers")) + 1 :]
        assert re.match(r"\d\d:\d\d:\d\d  Rolled back", below[0]), below
        assert any("reason 7" in line for line in below)


def test_ranks_and_seeds_are_shown_if_the_run_has_them(recorder):
    """Who is waited for; each seed with its stage."""
    view = view_of(recorder)
    row = {"process": "running", "pid": 1, "compute_s": 0.1, "wait_s": 0.0, "steps": 9, "batch": 8}
    ranks = {"ranks": [{"rank": n, **row} for n in range(2)], "slowest": 1, "share": 0.4, "batch": 16}
    seeds = [{"slot": "body.1", "stage": "BLENDING", "alpha": 0.5}]
    status = {**view.status, "ranks": ranks, "seeds": seeds}
    text = "\n".join(plain(picture(msgspec.structs.replace(view, status=status), 100, 30)))

    assert "ranks       2, all running, the others wait for rank 1 in 40% of a step" in text
    assert "seeds       body.1 BLENDING (alpha 0.5)" in text
