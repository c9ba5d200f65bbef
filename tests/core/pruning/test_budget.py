"""The choice of what a cycle prunes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tolariad.core.pruning.budget import PrunableLayer, UnitKind, choose, floor_of, removable
from tolariad.core.settings.pruning import Prune

DEFAULT = Prune()


@st.composite
def layers_with_scores(draw):
    """Up to six layers of channels and heads, some of them pruned before, with a score for each unit."""
    layers, scores = [], {}
    for number in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(UnitKind))
        width = draw(st.integers(1, 12 if kind is UnitKind.HEAD else 80))
        gone = draw(st.sets(st.integers(0, width - 1), max_size=width // 2))
        name = f"layer{number}"
        channels = draw(st.sampled_from([1, 2, 8])) if kind is UnitKind.CHANNEL else 8
        live = tuple(unit for unit in range(width) if unit not in gone)
        layers.append(PrunableLayer(name=name, width=width, live=live, kind=kind, channels=channels))
        scores[name] = draw(st.lists(st.floats(0, 1), min_size=width, max_size=width))
    return layers, scores


@given(layers_with_scores(), st.integers(0, 100))
def test_a_choice_keeps_within_budget_and_floors(drawn, channels):
    """Only live units are chosen, none twice, never more than the budget, and every layer keeps its floor."""
    layers, scores = drawn
    chosen = choose(layers, scores, channels, DEFAULT)

    by_name = {layer.name: layer for layer in layers}
    assert sum(len(units) * by_name[name].channels for name, units in chosen.items()) <= channels
    for name, units in chosen.items():
        layer = by_name[name]
        assert set(units) <= set(layer.live)
        assert list(units) == sorted(set(units))
        assert len(units) <= removable(layer, DEFAULT)
        assert len(layer.live) - len(units) >= floor_of(layer, DEFAULT)
    assert choose(layers, scores, channels, DEFAULT) == chosen


@given(layers_with_scores(), st.integers(0, 100))
def test_a_choice_takes_the_lowest_scores(drawn, channels):
    """Of a layer, no unit stays that scores lower than one that goes. It is maximal: no further unit fits."""
    layers, scores = drawn
    chosen = choose(layers, scores, channels, DEFAULT)

    spent = sum(len(chosen.get(layer.name, ())) * layer.channels for layer in layers)
    for layer in layers:
        gone = chosen.get(layer.name, ())
        stays = [scores[layer.name][unit] for unit in layer.live if unit not in gone]
        goes = [scores[layer.name][unit] for unit in gone]
        assert not goes or not stays or max(goes) <= min(stays)
        assert len(gone) == removable(layer, DEFAULT) or spent + layer.channels > channels


@given(st.lists(st.floats(0, 1), min_size=64, max_size=64), st.lists(st.floats(5, 6), min_size=64, max_size=64))
def test_a_layer_of_low_scores_does_not_collapse(low, high):
    """Forty cycles of 1 % leave half of the layer, though all of its scores are lower than the other's."""
    scores = {"low": low, "high": high}
    live = {"low": tuple(range(64)), "high": tuple(range(64))}
    for _ in range(40):
        layers = [PrunableLayer(name=name, width=64, live=units) for name, units in live.items()]
        for name, units in choose(layers, scores, 1, DEFAULT).items():
            live[name] = tuple(unit for unit in live[name] if unit not in units)

    assert (len(live["low"]), len(live["high"])) == (32, 56)


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
    layers = [PrunableLayer(name="a", width=10, live=tuple(range(10)))]

    assert choose(layers, {"a": [0.0] * 10}, 10, DEFAULT) == {}


def test_equal_scores_are_taken_in_order():
    """Of layers, then of units."""
    layers = [PrunableLayer(name=name, width=40, live=tuple(range(40))) for name in ("b", "a")]
    scores = {"a": [1.0] * 40, "b": [1.0] * 40}

    assert choose(layers, scores, 8, DEFAULT) == {"b": (0, 1, 2, 3, 4, 5), "a": (0, 1)}


@pytest.mark.parametrize(
    ("scores", "message"),
    [({}, "40 units need as many scores, not 0"), ({"a": [math.nan] * 40}, "the score of unit 0 is not a number")],
)
def test_a_score_that_is_missing_or_no_number_is_refused(scores, message):
    """A ranking with holes would prune what nobody measured."""
    layers = [PrunableLayer(name="a", width=40, live=tuple(range(40)))]

    with pytest.raises(ValueError, match=message):
        choose(layers, scores, 3, DEFAULT)
