"""The settings and the model's slots determine the strategy that is asked after an epoch."""

from __future__ import annotations

import pytest

from tolariad.core.calc.settings.model import Settings
from tolariad.core.calc.settings.strategies import strategy_problems, who_decides


@pytest.mark.parametrize(
    ("strategy", "morphogenetic", "slots", "who"),
    [
        (None, True, 0, ""),
        (None, True, 1, "default"),
        (None, False, 1, ""),
        ("none", True, 4, ""),
        ("default", True, 0, "default"),
        ("default", False, 4, "default"),
        ("./mine.py:Mine", True, 0, "./mine.py:Mine"),
    ],
)
def test_a_run_without_slots_and_name_asks_nobody(strategy, morphogenetic, slots, who):
    """A name is obeyed; without one the default policy decides if a seed may grow."""
    settings = Settings(strategy=strategy, enable_morphogenetic=morphogenetic)
    assert who_decides(settings, slots) == who


@pytest.mark.parametrize(
    "name", [None, "none", "default", "./mine.py:Mine", "/a b/mine.py:Mine", "pack.mod:Outer.Mine"]
)
def test_names_of_the_interface_are_accepted(name):
    """A file, a package, the two words, or none."""
    assert strategy_problems(name) == []


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("defualt", "default"), ("None", "none"), ("mine.py", None), ("./mine.txt:Mine", None), ("pack.mod:", None)],
)
def test_other_names_are_problems_with_the_near_one(name, nearest):
    """The text lists all forms."""
    problem, *more = strategy_problems(name)
    assert (problem.path, problem.nearest, more) == ("strategy", nearest, [])
    assert "./file.py:Name" in problem.what
