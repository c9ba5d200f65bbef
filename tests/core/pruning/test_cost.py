"""The parameters that go with units: each number once."""

from __future__ import annotations

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from tolariad.core.calc.pruning.cost import Cut, ParameterCount, counted, fault_of_cuts

# A layer of 3 x 2 whose rows are the units of `a`; one of 4 x 6 whose columns read them in pairs, rows those of `b`.
SHAPES = ((3, 2), (3,), (4, 6))
CUTS = {
    "a": (Cut(0, 0, (1,)), Cut(1, 0, (1,)), Cut(2, 1, (2,))),
    "b": (Cut(2, 0, (1, 1, 2)),),
}


def test_a_unit_takes_its_row_its_bias_and_the_columns_that_read_it():
    """Two of a row, one of a bias, two columns of four numbers."""
    assert ParameterCount(SHAPES).cost(CUTS["a"], 0) == 2 + 1 + 2 * 4


def test_a_number_in_a_row_and_a_column_that_both_go_counts_once():
    """Whichever goes first: together they take what is not left of 24 numbers."""
    for order in itertools.permutations([("a", 0), ("a", 1), ("b", 2)]):
        count = ParameterCount(SHAPES)
        taken = [count.take(CUTS[name], unit) for name, unit in order]
        assert count.gone == sum(taken) == 2 * (2 + 1) + (24 - 2 * 2)


@st.composite
def models(draw):
    """Shapes, and groups of units whose indices in a dimension are disjoint."""
    shapes = draw(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple), min_size=1, max_size=4))
    free = {(at, dim): list(range(size)) for at, shape in enumerate(shapes) for dim, size in enumerate(shape)}
    cuts, places = {}, {}
    for name in "ab":
        width = draw(st.integers(1, 3))
        of_name = []
        for (at, dim), left in free.items():
            sizes = [draw(st.integers(0, len(left) // width)) for _ in range(width)]
            if not any(sizes):
                continue
            of_name.append(Cut(at, dim, tuple(sizes[:1] if len(set(sizes)) == 1 else sizes)))
            for unit, size in enumerate(sizes):
                places.setdefault((name, unit), []).append((at, dim, [left.pop() for _ in range(size)]))
        cuts[name] = (width, tuple(of_name))
    chosen = {name: draw(st.sets(st.integers(0, width - 1))) for name, (width, _) in cuts.items()}
    return shapes, cuts, places, chosen


@given(models())
def test_the_count_is_that_of_the_covered_numbers(model):
    """Each number of each parameter is looked at: whether one of its indices goes with a chosen unit."""
    shapes, cuts, places, chosen = model
    gone = {(at, dim): set() for at, shape in enumerate(shapes) for dim in range(len(shape))}
    for name, units in chosen.items():
        for unit in units:
            for at, dim, indices in places.get((name, unit), ()):
                gone[at, dim].update(indices)
    covered = sum(
        any(index in gone[at, dim] for dim, index in enumerate(place))
        for at, shape in enumerate(shapes)
        for place in itertools.product(*map(range, shape))
    )

    assert all(fault_of_cuts(shapes, of_name, width) == "" for width, of_name in cuts.values())
    assert counted(shapes, {name: of_name for name, (_, of_name) in cuts.items()}, chosen).gone == covered
    assert covered <= sum(map(math.prod, shapes))


def test_impossible_cuts_are_named():
    """A parameter or a dimension that is not there, too few numbers, more indices than the dimension has."""
    assert "no dimension 0 of parameter 3" in fault_of_cuts(SHAPES, [Cut(3, 0, (1,))], 3)
    assert "no dimension 2 of parameter 2" in fault_of_cuts(SHAPES, [Cut(2, 2, (1,))], 3)
    assert "3 units have 2 numbers" in fault_of_cuts(SHAPES, [Cut(2, 1, (1, 1))], 3)
    assert "3 units have 0 numbers" in fault_of_cuts(SHAPES, [Cut(2, 1, ())], 3)
    assert "9 indices in a dimension of 6" in fault_of_cuts(SHAPES, [Cut(2, 1, (3,))], 3)
