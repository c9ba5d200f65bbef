"""A new order is four files: message, rule, row, verb. It is then accepted, recorded, shown and answered as any other.

docs/contributing.md says so. Here a made-up boundary order is added to a copy of the program, and is tried there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.house.tree import ROOT

# What the order adds to each file: at its end, or after the line that is given.
ADDED = {
    "core/messages/rates.py": (
        "",
        '''
class TurnKnob(Command, frozen=True, kw_only=True):
    """Turn a knob at the next step boundary."""

    knob: Name


class Turn(BoundaryOrder, frozen=True, kw_only=True):
    """To the trainer: turn the knob."""

    ACCEPTS: ClassVar[tuple[str, ...]] = ("TurnKnob",)

    knob: Name
''',
    ),
    "core/rules/rates.py": (
        "",
        '''
def turn(_: Reads, command: m.TurnKnob) -> m.OrderGiven | m.Refusal:
    """Accept a turn, or refuse it."""
    if command.knob != "left":
        return m.Refusal("NotFound", f"there is no knob {command.knob!r}; there is left")
    return m.OrderGiven(order=m.Turn(knob=command.knob))
''',
    ),
    "core/rules/table/orders.py": (
        "    m.LrSet: _at_a_boundary(rates.order),\n",
        "    m.TurnKnob: _at_a_boundary(rates.turn),\n",
    ),
    "cli/orders.py": (
        "",
        '''
@click.command()
@takes_run
@sends("TurnKnob")
@click.argument("knob")
def turn(*, knob: str) -> Parameters:
    """Turn a knob."""
    return {"knob": knob}
''',
    ),
}
TRIED = """
from tolariad.cli.orders import turn
from tolariad.control.order_methods import METHODS
from tolariad.core import messages as m
from tolariad.core.messages.sentences.text import sentence
from tolariad.core.messages.vocabulary import decode_event, encode_event
from tolariad.core.rules.table.decide import decide
from tolariad.core.state.run_state import RunState, capture, fold, read_capture

def given(state, what):
    found = decide(state, what, m.Now(1, 1))
    events = tuple(decode_event(encode_event(one)) for one in found.events)
    assert events == found.events
    return found, read_capture(capture(fold(state, events)))

wrong, _ = given(RunState(), m.CommandReceived(command=m.TurnKnob(knob="right"), actor=m.Actor(uid=7)))
ordered, state = given(RunState(), m.CommandReceived(command=m.TurnKnob(knob="left", id="k1"), actor=m.Actor(uid=7)))
again, _ = given(state, m.CommandReceived(command=m.TurnKnob(knob="left", id="k1"), actor=m.Actor(uid=7)))
answer = m.BoundaryOrderReport(order=1, applied_before_step=4)
acted, after = given(state, m.ReportReceived(incarnation=0, report=answer))
print(wrong.answer.why, ordered.answer, again.answer, sep="\\n")
print(*(sentence(one) for one in (*ordered.events, *acted.events)), sep="\\n")
print([name for name, kind in METHODS.items() if kind is m.TurnKnob], turn.name)
print(state.boundary.waiting[0].order, after.boundary.waiting, after.boundary.acted)
"""


def linked(source: Path, target: Path, name: str) -> None:
    """Make a folder of links to what is in `source`, but for the files that the order adds something to."""
    target.mkdir()
    for entry in source.iterdir():
        path = f"{name}{entry.name}"
        if path in ADDED:
            after, text = ADDED[path]
            before = entry.read_text(encoding="utf-8")
            assert after in before
            added = before.replace(after, after + text, 1) if after else before + text
            (target / entry.name).write_text(added, encoding="utf-8")
        elif any(one.startswith(f"{path}/") for one in ADDED):
            linked(entry, target / entry.name, f"{path}/")
        elif entry.name != "__pycache__":
            (target / entry.name).symlink_to(entry)


def test_a_boundary_order_is_accepted_by_four_files(tmp_path):
    """Its events, its fold, its place in the state, its sentences and its end are those of every order."""
    linked(ROOT / "tolariad", tmp_path / "tolariad", "")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    tried = subprocess.run(
        [sys.executable, "-c", TRIED], capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
    )

    assert tried.returncode == 0, tried.stderr
    assert tried.stdout.splitlines() == [
        "there is no knob 'right'; there is left",
        "Accepted(seq=1)",
        "Accepted(seq=1)",
        "The order Turn was given by uid 7.",
        "The order Turn acts from step 4 on.",
        "['io.esper.tolaria.TurnKnob'] turn",
        "Turn(cause=0, knob='left') () 1",
    ]
    assert len(ADDED) == 4
