"""The choice of what a cycle prunes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tolariad.core.calc.pruning.budget import PrunableLayer, UnitKind, choose, floor_of, removable
from tolariad.core.calc.pruning.cost import Cut, ParameterCount
from tolariad.core.calc.settings.pruning import Prune

DEFAULT = Prune()


def taken(layers, shapes, scores, parameters, avoid=None):
    """Return the choice, and how many parameters went with it."""
    count = ParameterCount(shapes)
    chosen = choose(layers, scores, parameters, DEFAULT, count=count, avoid=avoid or {})
    return chosen, count.gone


def rows(width, size=1):
    """Return a shape of so many rows, and the cuts of units that are rows."""
    return (width, size), (Cut(0, 0, (1,)),)


@st.composite
def layers_with_scores(draw):
    """Up to six layers of channels and heads, some of them pruned before, with a score for each unit.

    A layer's units are the rows of one parameter; its columns are read from the layer before it.
    """
    layers, shapes, scores = [], [], {}
    for number in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(UnitKind))
        width = draw(st.integers(1, 12 if kind is UnitKind.HEAD else 80))
        gone = draw(st.sets(st.integers(0, width - 1), max_size=width // 2))
        name = f"layer{number}"
        channels = draw(st.sampled_from([1, 2, 8])) if kind is UnitKind.CHANNEL else 8
        live = tuple(unit for unit in range(width) if unit not in gone)
        shapes.append((width * channels, layers[-1].width * layers[-1].channels if layers else 3))
        if layers:
            former = layers[-1]
            layers[-1] = replace(former, cuts=(*former.cuts, Cut(number, 1, (former.channels,))))
        layers.append(
            PrunableLayer(
                name=name, width=width, live=live, kind=kind, channels=channels, cuts=(Cut(number, 0, (channels,)),)
            )
        )
        scores[name] = draw(st.lists(st.floats(0, 1), min_size=width, max_size=width))
    return layers, shapes, scores


@given(layers_with_scores(), st.integers(0, 20_000))
def test_a_choice_keeps_within_budget_and_floors(drawn, parameters):
    """Only live units are chosen, none twice, never more parameters than the budget, and every layer keeps its floor.

    What is left of each parameter is counted from the choice alone.
    """
    layers, shapes, scores = drawn
    chosen, gone = taken(layers, shapes, scores, parameters)

    lost = [len(chosen.get(layer.name, ())) * layer.channels for layer in layers]
    left = [(rows - lost[at], columns - (lost[at - 1] if at else 0)) for at, (rows, columns) in enumerate(shapes)]
    assert gone == sum(map(math.prod, shapes)) - sum(map(math.prod, left)) <= parameters
    by_name = {layer.name: layer for layer in layers}
    for name, units in chosen.items():
        layer = by_name[name]
        assert set(units) <= set(layer.live)
        assert list(units) == sorted(set(units))
        assert len(units) <= removable(layer, DEFAULT)
        assert len(layer.live) - len(units) >= floor_of(layer, DEFAULT)
    assert taken(layers, shapes, scores, parameters) == (chosen, gone)


@given(layers_with_scores(), st.integers(0, 20_000))
def test_a_choice_takes_the_lowest_scores(drawn, parameters):
    """Of a layer, no unit stays that scores lower than one that goes. The first one that goes is the lowest that fits.

    Of one layer alone no further unit fits.
    """
    layers, shapes, scores = drawn
    chosen, _ = taken(layers, shapes, scores, parameters)

    for layer in layers:
        gone = chosen.get(layer.name, ())
        stays = [scores[layer.name][unit] for unit in layer.live if unit not in gone]
        goes = [scores[layer.name][unit] for unit in gone]
        assert not goes or not stays or max(goes) <= min(stays)
    alone = replace(layers[0], cuts=layers[0].cuts[:1])
    units, spent = taken([alone], shapes, scores, parameters)
    unit_costs = alone.channels * shapes[0][1]
    assert len(units.get(alone.name, ())) == removable(alone, DEFAULT) or spent + unit_costs > parameters


@given(st.lists(st.floats(0, 1), min_size=64, max_size=64), st.lists(st.floats(5, 6), min_size=64, max_size=64))
def test_a_layer_of_low_scores_does_not_collapse(low, high):
    """Forty cycles of 1 % leave half of the layer, though all of its scores are lower than the other's."""
    scores = {"low": low, "high": high}
    live = {"low": tuple(range(64)), "high": tuple(range(64))}
    shape, cuts = rows(64)
    for _ in range(40):
        layers = [PrunableLayer(name=name, width=64, live=units, cuts=cuts) for name, units in live.items()]
        for name, units in taken(layers, [shape], scores, 1)[0].items():
            live[name] = tuple(unit for unit in live[name] if unit not in units)

    assert (len(live["low"]), len(live["high"])) == (32, 56)


def test_a_unit_that_is_too_large_is_passed_over():
    """The large one has the lowest score. What is left of the budget goes to the next that fits."""
    large = PrunableLayer(name="large", width=40, live=tuple(range(40)), cuts=(Cut(0, 0, (1,)),))
    small = PrunableLayer(name="small", width=40, live=tuple(range(40)), cuts=(Cut(1, 0, (1,)),))
    scores = {"large": [0.0] * 40, "small": [1.0] * 40}

    assert taken([large, small], [(40, 100), (40, 30)], scores, 99) == ({"small": (0, 1, 2)}, 90)
    assert taken([large, small], [(40, 100), (40, 30)], scores, 150) == ({"large": (0,), "small": (0,)}, 130)
    assert taken([large, small], [(40, 100), (40, 30)], scores, 29) == ({}, 0)


def test_units_to_avoid_are_not_chosen():
    """They live on, so the floor counts them."""
    shape, cuts = rows(40)
    layers = [PrunableLayer(name="a", width=40, live=tuple(range(40)), cuts=cuts)]

    assert taken(layers, [shape], {"a": [0.0] * 40}, 40, {"a": (0, 2)})[0] == {"a": (1, 3, 4, 5, 6, 7)}


@pytest.mark.parametrize(
    ("layer", "floor"),
    [
        (PrunableLayer(name="a", width=64, live=()), 32),
        (PrunableLayer(name="a", width=24, live=()), 16),
        (PrunableLayer(name="a", width=8, live=()), 16),
        (PrunableLayer(name="a", width=8, live=(), channels=8), 4),
        (PrunableLayer(name="a", width=2, live=(), kind=UnitKind.HEAD, channels=8), 2),
        (PrunableLayer(name="a", width=12, live=(), kind=UnitKind.HEAD, channels=8), 6),
    ],
)
def test_the_floor_of_a_layer(layer, floor):
    """Sixteen channels, two heads, half of the layer: whichever is most."""
    assert floor_of(layer, DEFAULT) == floor


def test_a_narrow_layer_keeps_all_its_channels():
    """Also if the budget would take them all."""
    shape, cuts = rows(10)
    layers = [PrunableLayer(name="a", width=10, live=tuple(range(10)), cuts=cuts)]

    assert taken(layers, [shape], {"a": [0.0] * 10}, 10) == ({}, 0)


def test_equal_scores_are_taken_in_order():
    """Of layers, then of units."""
    shape, cuts = rows(40)
    layers = [PrunableLayer(name=name, width=40, live=tuple(range(40)), cuts=cuts) for name in ("b", "a")]
    scores = {"a": [1.0] * 40, "b": [1.0] * 40}

    assert taken(layers, [shape], scores, 8)[0] == {"b": (0, 1, 2, 3, 4, 5), "a": (0, 1)}


@pytest.mark.parametrize(
    ("scores", "message"),
    [({}, "unit 39 needs a score, and there are 0"), ({"a": [math.nan] * 40}, "the score of unit 0 is not a number")],
)
def test_a_score_that_is_missing_or_no_number_is_refused(scores, message):
    """A ranking with holes would prune what nobody measured."""
    shape, cuts = rows(40)
    layers = [PrunableLayer(name="a", width=40, live=tuple(range(40)), cuts=cuts)]

    with pytest.raises(ValueError, match=message):
        taken(layers, [shape], scores, 3)
