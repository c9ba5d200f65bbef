"""What of the settings exact sums need (docs/exact-sums.md)."""

from __future__ import annotations

from tolariad.core.calc.settings.processes import Parallel
from tolariad.core.calc.settings.reading import Problem


def exact_problems(parallel: Parallel, accumulate: int) -> list[Problem]:
    """Return the problems of exact sums: the number of leaves is the number of micro-batches of a step."""
    leaves = parallel.leaves
    if not parallel.exact:
        what = "is of no use without parallel.exact: remove it, or set parallel.exact"
        return [Problem(path="parallel.leaves", what=what)] if leaves is not None else []
    if leaves is None:
        return [Problem(path="parallel.leaves", what="is required with parallel.exact: the micro-batches of a step")]
    if parallel.ranks > leaves:
        what = f"is {parallel.ranks}, and parallel.leaves is {leaves}: each rank makes at least one leaf of a step"
        return [Problem(path="parallel.ranks", what=what)]
    if accumulate not in (1, leaves):
        what = f"is {accumulate}, but with parallel.exact a step has parallel.leaves ({leaves}): remove it"
        return [Problem(path="accumulate", what=what)]
    return []
