"""Exact sums in the settings: the number of ranks decides about nothing but the time, and what cannot be is named."""

from __future__ import annotations

import pytest

from tolariad.core.calc.settings.ranks import for_ranks, with_leaves
from tolariad.core.calc.settings.reading import ConfigError, read_settings
from tolariad.core.calc.settings.rules import check, exact_json


def settings(ranks=1, **more):
    return read_settings({"task": "digits", "parallel": {"exact": True, "leaves": 4, "ranks": ranks}, **more})


def test_the_number_of_ranks_is_in_no_hash_of_an_exact_run():
    """Without exact sums it is: each number has bits of its own."""
    assert len({exact_json(settings(ranks)) for ranks in (1, 2, 4)}) == 1
    plain = [read_settings({"task": "digits", "parallel": {"ranks": ranks}}) for ranks in (1, 2)]
    assert len({exact_json(one) for one in plain}) == 2
    assert exact_json(settings()) not in {exact_json(one) for one in plain}


def test_a_step_takes_as_many_batches_with_any_number_of_ranks():
    """As one process that accumulates the leaves; once more changes nothing."""
    found = [with_leaves(for_ranks(settings(ranks))) for ranks in (1, 3)]
    assert {one.accumulate for one in found} == {4}
    assert with_leaves(found[0]) == found[0]
    plain = read_settings({"task": "digits", "accumulate": 3})
    assert with_leaves(plain) is plain


@pytest.mark.parametrize(
    ("document", "key", "says"),
    [
        ({"parallel": {"exact": True, "leaves": 3, "ranks": 4}}, "parallel.ranks", "at least one leaf of a step"),
        ({"parallel": {"exact": True}}, "parallel.leaves", "is required"),
        ({"parallel": {"ranks": 2, "leaves": 4}}, "parallel.leaves", "is of no use without parallel.exact"),
        ({"parallel": {"exact": True, "leaves": 4}, "accumulate": 2}, "accumulate", "remove it"),
        ({"parallel": {"exact": True, "leaves": 4}, "compile": True}, "compile", "exact sums (parallel.exact) cannot"),
        ({"parallel": {"exact": True, "leaves": 4}, "precision": "fp16"}, "precision", "fp16 with exact sums"),
        ({"parallel": {"ranks": 2}, "compile": True}, "compile", "several ranks cannot do this yet"),
    ],
)
def test_what_cannot_be_is_named(document, key, says):
    """The key, and why."""
    try:
        found = check(read_settings({"task": "digits", **document}))
    except ConfigError as refused:
        found = refused.problems
    assert [(one.path, says in one.what) for one in found] == [(key, True)], found
