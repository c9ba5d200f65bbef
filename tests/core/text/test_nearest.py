"""The question for the name that was probably meant is asked in one place, in the same words."""

from __future__ import annotations

import re

from tests.house.tree import ROOT
from tolariad.core.calc.text.nearest import ALIKE, KEYS_ALIKE, all_near, did_you_mean, nearest


def test_the_nearest_name_is_found_and_a_strange_one_is_not():
    """A misspelt name has one answer. A name that is like no other has none."""
    assert nearest("epoch", ["steps", "epochs"]) == "epochs"
    assert nearest("epochs", ["juggle", "steel"]) is None
    assert nearest("lr_stepp", iter(["lr_step"]), KEYS_ALIKE) == "lr_step"
    assert all_near("step", ["steps", "stop", "epoch"], 2) == ["steps", "stop"]
    assert 0.0 < ALIKE < KEYS_ALIKE < 1.0


def test_an_error_without_a_near_name_asks_nothing():
    """The question is appended to a sentence; without a name there is none."""
    assert did_you_mean("epochs") == "; did you mean epochs?"
    assert did_you_mean(None) == did_you_mean("") == ""


def test_nobody_else_asks():
    """Every other module uses this one, so that the question has the same words everywhere."""
    asks = re.compile(r"did you mean [^`]*\?|get_close_matches", re.IGNORECASE)
    found = {path.name for path in (ROOT / "tolariad").rglob("*.py") if asks.search(path.read_text())}
    assert found == {"nearest.py"}
