"""Conflicts between gradients, judged and resolved by their inner products.

Every rule gives the sum of the resolved gradients as a combination of the original ones, so it needs only their Gram
matrix. Promises: the result depends on ratios of inner products only: if all gradients are scaled by one number, the
coefficients stay the same. A zero gradient conflicts with nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Matrix: TypeAlias = npt.NDArray[np.float64]
# A cosine of 0: any negative inner product is a conflict, as in the PCGrad paper.
ANY_CONFLICT: Final = 0.0


class ConflictLimits(NamedTuple):
    """When two gradients are in conflict. `epsilon` is relative to the product of their norms."""

    threshold: float
    epsilon: float

    def conflict(self, dot: float, squared_a: float, squared_b: float) -> bool:
        """Return whether the cosine is below the threshold; never for a zero gradient."""
        if not (squared_a > 0.0 and squared_b > 0.0):
            return False
        return dot < (self.threshold - self.epsilon) * math.sqrt(squared_a) * math.sqrt(squared_b)


class Compared(NamedTuple):
    """Gradients over the same parameters: row 0 is the host's if `has_host`.

    * `gram`: the inner products of the gradients.
    * `factors`: the factors by which the gradients were multiplied.
    * `ranks`: the seeds' rows by falling importance.
    * `draw`: called with a number of rows, returns a random order of them.
    """

    gram: Matrix
    has_host: bool
    factors: Sequence[float]
    ranks: Sequence[int]
    draw: Callable[[int], Sequence[int]]


Rule: TypeAlias = Callable[[Compared, ConflictLimits], Matrix]


def count(gram: Matrix, limits: ConflictLimits) -> int:
    """Return the number of pairs in conflict."""
    rows = range(len(gram))
    return sum(limits.conflict(gram[i, j], gram[i, i], gram[j, j]) for i in rows for j in rows if i < j)


def pcgrad(compared: Compared, limits: ConflictLimits) -> Matrix:
    """Project the seeds: first each against the host, then each against the others, in a drawn order.

    The host's gradient is never changed. The others' gradients are taken as they are after their projection against
    the host: a projection against them then brings back no conflict with it. Without the host this is algorithm 1 of
    PCGrad (Yu et al., 2020).
    """
    gram, rows = compared.gram, len(compared.gram)
    parts: Matrix = np.eye(rows)
    first = 1 if compared.has_host else 0
    for i in range(first, rows):
        if first and limits.conflict(gram[i, 0], gram[i, i], gram[0, 0]):
            parts[i, 0] -= gram[i, 0] / gram[0, 0]
    others = _Fixed(gram)
    for part in parts:
        others.add(part)
    total = parts[0].copy() if first else np.zeros(rows)
    for i in range(first, rows):
        order = [first + j for j in compared.draw(rows - first)]
        total += others.project(parts[i], i, [j for j in order if j != i], limits)
    return total


def priority(compared: Compared, limits: ConflictLimits) -> Matrix:
    """Project each seed against the host and against every seed that is more important, in that order. Draw nothing."""
    gram, rows = compared.gram, len(compared.gram)
    ranked = ([0] if compared.has_host else []) + list(compared.ranks)
    parts: Matrix = np.eye(rows)
    total, higher = np.zeros(rows), _Fixed(gram)
    for place, i in enumerate(ranked):
        part = higher.project(parts[i], i, range(place), limits)
        higher.add(part)
        total += part
    return total


def average(compared: Compared, limits: ConflictLimits) -> Matrix:
    """Return the mean of the gradients, by their factors, if any two are in conflict; else their sum."""
    rows = len(compared.gram)
    return np.full(rows, 1.0 / sum(compared.factors) if count(compared.gram, limits) else 1.0)


RULES: Final[Mapping[str, Rule]] = MappingProxyType({"pcgrad": pcgrad, "average": average, "priority": priority})


class _Fixed:
    """Gradients that others are projected against: combinations of the rows of a Gram matrix."""

    def __init__(self, gram: Matrix) -> None:
        self._gram = gram
        self._parts: list[Matrix] = []
        self._products: list[Matrix] = []
        self._squared: list[float] = []

    def add(self, part: Matrix) -> None:
        """Add a gradient, as a combination of rows."""
        product = self._gram @ part
        self._parts.append(part.copy())
        self._products.append(product)
        self._squared.append(float(part @ product))

    def project(self, part: Matrix, row: int, against: Sequence[int], limits: ConflictLimits) -> Matrix:
        """Return `part`, which began as `row`, projected against those of `against` that it conflicts with, in order.

        A gradient whose squared norm fell to epsilon of the original one is not compared any more: its products are
        noise.
        """
        part, floor = part.copy(), limits.epsilon * float(self._gram[row, row])
        squared = float(part @ self._gram @ part)
        for j in against:
            dot, other = float(part @ self._products[j]), self._squared[j]
            vanished = squared <= floor or other <= limits.epsilon * self._largest(j)
            if not vanished and limits.conflict(dot, squared, other):
                part -= dot / other * self._parts[j]
                squared = max(0.0, squared - dot * (dot / other))
        return part

    def _largest(self, j: int) -> float:
        """Return the largest squared norm among the rows that a gradient consists of."""
        used: Any = self._parts[j] != 0.0
        return float(np.diagonal(self._gram)[used].max(initial=0.0))
