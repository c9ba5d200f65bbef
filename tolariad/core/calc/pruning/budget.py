"""The choice of what a cycle prunes: a global ranking under a budget of parameters, with a floor for every layer.

Promises: equal arguments give the same choice. No layer falls below its floor or loses more than its share in one
cycle. No more parameters than the budget go. Of the units of a layer, those with the lowest scores go.
A ranking without floors prunes whole layers away: one layer's scores are often all lower than another's.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from enum import Enum

from msgspec import Struct

from tolariad.core.calc.pruning.cost import Cut, ParameterCount
from tolariad.core.calc.settings.pruning import Prune


class UnitKind(Enum):
    """The kind of a layer's units."""

    CHANNEL = "channel"
    HEAD = "head"


class PrunableLayer(Struct, frozen=True, kw_only=True):
    """A layer whose units can be pruned one by one.

    * `width`: the number of units before any pruning.
    * `live`: the indices of the units that are left.
    * `channels`: the number of channels in each unit, such as a head's, or those that share a group of GroupNorm.
    * `cuts`: the parameters that go with each unit.
    """

    name: str
    width: int
    live: tuple[int, ...]
    kind: UnitKind = UnitKind.CHANNEL
    channels: int = 1
    cuts: tuple[Cut, ...] = ()


def floor_of(layer: PrunableLayer, prune: Prune) -> int:
    """Return how many units the layer keeps at least. A layer that is narrower from the start keeps all."""
    least = prune.min_heads if layer.kind is UnitKind.HEAD else math.ceil(prune.min_channels / layer.channels)
    return max(least, _ceil(prune.min_layer_share, layer.width))


def removable(layer: PrunableLayer, prune: Prune) -> int:
    """Return how many of the layer's units one cycle may prune: at least one, if the floor allows it."""
    share = max(1, _floor(prune.max_layer_share_per_cycle, layer.width)) if prune.max_layer_share_per_cycle else 0
    return max(0, min(share, len(layer.live) - floor_of(layer, prune)))


def choose(
    layers: Sequence[PrunableLayer],
    scores: Mapping[str, Sequence[float]],
    parameters: int,
    prune: Prune,
    *,
    count: ParameterCount,
    avoid: Mapping[str, Sequence[int]],
) -> dict[str, tuple[int, ...]]:
    """Return the units to prune by layer, ascending: those with the lowest scores that fit into `parameters`.

    `scores` holds, for each layer, a score for every unit that the model has now; scores of pruned units are not read.
    `count` already counts what is pruned; the chosen units are taken from it. Units of `avoid` are not chosen. Equal
    scores are taken in the order of layers and units. A unit is passed over if more parameters would go with it than
    are left of the budget when its turn comes.

    Raises ValueError if a live unit has no score, or one that is not a number.
    """
    queue = _ranked(layers, scores, avoid)
    left = {layer.name: removable(layer, prune) for layer in layers}
    most = count.gone + parameters
    chosen: dict[str, list[int]] = {}
    while queue and count.gone < most:
        _, at, unit = heapq.heappop(queue)
        layer = layers[at]
        if left[layer.name] > 0 and count.gone + count.cost(layer.cuts, unit) <= most:
            left[layer.name] -= 1
            count.take(layer.cuts, unit)
            chosen.setdefault(layer.name, []).append(unit)
    return {name: tuple(sorted(units)) for name, units in chosen.items()}


def _ranked(
    layers: Sequence[PrunableLayer], scores: Mapping[str, Sequence[float]], avoid: Mapping[str, Sequence[int]]
) -> list[tuple[float, int, int]]:
    queue = []
    for at, layer in enumerate(layers):
        given, avoided = scores.get(layer.name, ()), set(avoid.get(layer.name, ()))
        if any(unit >= len(given) for unit in layer.live):
            raise ValueError(f"{layer.name}: unit {max(layer.live)} needs a score, and there are {len(given)}")
        bad = [unit for unit in layer.live if math.isnan(given[unit])]
        if bad:
            raise ValueError(f"{layer.name}: the score of unit {bad[0]} is not a number")
        queue += [(given[unit], at, unit) for unit in layer.live if unit not in avoided]
    heapq.heapify(queue)
    return queue


def _ceil(share: float, width: int) -> int:
    """Exact for the decimal number that the configuration says: 0.15 of 20 is 3, not 3 and a little."""
    from fractions import Fraction

    return math.ceil(Fraction(repr(share)) * width)


def _floor(share: float, width: int) -> int:
    from fractions import Fraction

    return math.floor(Fraction(repr(share)) * width)
