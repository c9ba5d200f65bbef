"""Which of many cases the ordinary suite runs: a few, drawn with the seed of the session. `make torture` runs them all.

`@pytest.mark.sample(4)` stands above a test whose many parameters cost seconds each. Each session draws others, and its
seed repeats them. A case that is named on the command line is run. The number of examples of a property is small in the
same way.
"""

from __future__ import annotations

import random
from collections import defaultdict

import hypothesis
import hypothesis.core
import pytest

_EXAMPLES, _IN_TORTURE = 40, 1000


def settle(seed: int, *, whole: bool) -> None:
    """Set what holds for all properties of this session. `whole`: it is `make torture`."""
    # No deadline: two busy cores are not the property's fault. One seed governs hypothesis as well, so that a failure
    # anywhere is repeated by the one variable that the header prints.
    hypothesis.core.global_force_seed = seed
    common = {"deadline": None, "print_blob": True}
    hypothesis.settings.register_profile("house", **common, max_examples=_IN_TORTURE if whole else _EXAMPLES)
    hypothesis.settings.load_profile("house")


def draw(items: list[pytest.Item], seed: int, *, whole: bool) -> None:
    """Leave the cases that are not drawn to `make torture`. `whole`: it is that; it runs all, and all properties."""
    tests = defaultdict(list)
    for item in items:
        if whole and hypothesis.is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.torture)
        if (mark := item.get_closest_marker("sample")) is not None and item.get_closest_marker("torture") is None:
            tests[item.nodeid.partition("[")[0], *mark.args].append(item)
    for (name, number), cases in tests.items():
        kept = [] if whole else random.Random(f"{seed} {name}").sample(cases, min(number, len(cases)))
        for case in cases:
            if case not in kept:
                case.add_marker(pytest.mark.torture)
