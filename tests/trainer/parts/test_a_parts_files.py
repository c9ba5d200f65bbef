"""A new part of the state is one file, and its line in the list. It is then captured, restored, compared, and obeyed.

docs/contributing.md says so. Here a made-up part is added to the program's own list, and a trainer trains with it.
"""

from __future__ import annotations

import types

import msgspec
import pytest

from tests.core.boundary.toys import Turn
from tests.house.tree import ROOT
from tests.trainer.test_two_kinds import _Order
from tolariad.channel import pair
from tolariad.core import messages as m
from tolariad.trainer import build
from tolariad.trainer.checkpoints.restore import load, restore
from tolariad.trainer.rollback.confirm import differing

PARTS = "tolariad/trainer/parts"
# The new file.
KNOB = '''
"""Knobs that orders turn, and a tensor that counts updates."""

import torch

from tests.core.boundary.toys import Turn
from tolariad.trainer.orders.numbered import Kind
from tolariad.trainer.parts.part import Part, State


class KnobPart(Part):
    name = "knobs"

    def __init__(self):
        self.turned, self.updates = {}, torch.zeros(2)

    def state(self):
        return State({"knobs": {"turned": self.turned, "updates": self.updates}})

    def load(self, held):
        self.turned, self.updates = held.entry("knobs").values()

    def after_update(self):
        self.updates += torch.tensor([1.0, 0.1])

    def orders(self, trained):
        return {Turn: Kind(lambda order: self.turned.update({order.knob: (order.to, trained.position().step)}))}
'''
# The list, by the lines before what the part adds to it.
LISTED = {
    f"from {PARTS.replace('/', '.')}.detector import DetectorPart\n": (
        f"from {PARTS.replace('/', '.')}.knob import KnobPart\n"
    ),
    "        DetectorPart(setup),\n": "        KnobPart(),\n",
}


@pytest.fixture
def with_knobs(monkeypatch):
    """The program with that file, and those lines in the list. Its trainers may get the order."""
    knob = types.ModuleType(f"{PARTS}.knob".replace("/", "."))
    exec(compile(KNOB, "knob.py", "exec"), knob.__dict__)
    monkeypatch.setitem(__import__("sys").modules, knob.__name__, knob)
    text = (ROOT / PARTS / "whole.py").read_text(encoding="utf-8")
    for before, added in LISTED.items():
        assert text.count(before) == 1
        text = text.replace(before, before + added)
    whole = types.ModuleType("whole")
    exec(compile(text, "whole.py", "exec"), whole.__dict__)
    monkeypatch.setattr(build, "parts_of", whole.parts_of)
    monkeypatch.setattr(pair, "_decode_order", msgspec.msgpack.Decoder(_Order))


def test_a_part_is_one_file_and_its_line_in_the_list(with_knobs, resumes, configured):
    """It obeys its order, follows each update, resumes bit for bit, and a wrong bit after a restore has its name."""
    configuration = configured("digits", epochs=1, ema={"decay": 0.9})
    broken, calm = resumes(configuration, 1, waiting=(Turn(knob="left", to=3, cause=4),))

    (last,) = (one for one in calm.committed if one.id == "end")
    held = load(calm.run_dir / "checkpoints" / last.id, last.manifest)
    assert held.state["knobs"]["turned"] == {"left": (3, 0)}
    assert held.state["knobs"]["updates"].tensor[0] == last.step
    assert [one.refused for one in broken.of(m.BoundaryOrderReport)] == [""]

    fresh = build.build(configuration)
    position = restore(fresh, held)
    assert list(differing(fresh, held, position)) == []
    (knobs,) = (part for part in fresh.parts if part.name == "knobs")
    knobs.updates += 1e-3
    assert list(differing(fresh, held, position)) == ["state-00000.msgpack knobs.updates"]


def kinds_of(part):
    """Every kind of part that is derived from this one, and from which none is derived."""
    derived = part.__subclasses__()
    return set().union(*map(kinds_of, derived)) if derived else {part}


def test_what_is_in_the_state_has_one_part(configured):
    """Two parts of one entry would overwrite each other; the list names every kind of part that there is."""
    from tolariad.trainer.parts.part import Part

    setup = build.build(configured("digits", epochs=1, ema={"decay": 0.9}))
    entries = [key for part in setup.parts for key in part.state().tree]

    assert len(entries) == len(set(entries))
    assert len({part.name for part in setup.parts}) == len(setup.parts)
    assert {type(part) for part in setup.parts} == {kind for kind in kinds_of(Part) if kind.__name__ != "KnobPart"}
