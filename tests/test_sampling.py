"""Cases of a sample: the seed draws them, one that is named is run, and `make torture` runs all."""

from __future__ import annotations

import pytest

from tests.sampling import draw


class Item:
    """What `draw` uses of an item of pytest."""

    def __init__(self, nodeid: str, *marks: pytest.MarkDecorator) -> None:
        self.nodeid, self.marks = nodeid, list(marks)

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next((one.mark for one in self.marks if one.name == name), None)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.append(mark)


def left(items: list[Item], seed: int = 1, *, whole: bool = False) -> list[str]:
    """Return the items that the ordinary suite runs."""
    draw(items, seed, whole=whole)
    return [one.nodeid for one in items if one.get_closest_marker("torture") is None]


def cases(name: str = "a.py::test", number: int = 12) -> list[Item]:
    return [Item(f"{name}[{n}]", pytest.mark.sample(3)) for n in range(number)]


def test_a_seed_draws_the_same_cases_and_another_seed_others():
    """As many as the mark says, of each test."""
    drawn = [tuple(left(cases(), seed)) for seed in range(20)]

    assert {len(one) for one in drawn} == {3}
    assert len(set(drawn)) > 10
    assert {name for one in drawn for name in one} == {one.nodeid for one in cases()}
    assert tuple(left([*cases("b.py::test"), *cases()], 5)[3:]) == drawn[5]


def test_cases_that_are_few_or_named_all_run():
    """A case on the command line is the only one that was collected."""
    assert left(cases(number=3)) == [one.nodeid for one in cases(number=3)]
    assert left(cases()[7:8]) == ["a.py::test[7]"]
    assert left([Item("a.py::other")]) == ["a.py::other"]


def test_the_torture_runs_all_of_them():
    """Each has its mark then; one that was the torture's before is not drawn."""
    assert left(cases(), whole=True) == []
    long = Item("a.py::test[long]", pytest.mark.sample(3), pytest.mark.torture)
    assert len(left([long, *cases(number=3)])) == 3
