"""Which rank computes which leaves, where a leaf's gradients lie, and which share of them a rank adds up.

The order of the sum is the chain: leaf 0 first, each further one added to the sum so far. Rank 0 has the first leaves,
so it adds its own at once and needs one place. The leaves of all others need a place each. If there are fewer leaves
than ranks, rank 0 has none, and its place stays empty.
"""

from __future__ import annotations


def block(leaves: int, ranks: int, rank: int) -> range:
    """Return the leaves of a rank. Blocks are neighbours, in the order of the ranks; their lengths differ by one."""
    return range(leaves * rank // ranks, leaves * (rank + 1) // ranks)


def slots(leaves: int, ranks: int) -> int:
    """Return how many copies of all gradients a step needs: one for rank 0, one for each leaf of the others."""
    return 1 + leaves - len(block(leaves, ranks, 0))


def slot_of(leaf: int, leaves: int, ranks: int) -> int:
    """Return the copy that holds this leaf, or the sum that begins with it. Copies are in the order of the sum."""
    return max(0, leaf + 1 - len(block(leaves, ranks, 0)))


def share(length: int, ranks: int, rank: int, unit: int) -> tuple[int, int]:
    """Return which of `length` elements a rank adds up, as (first, end). Shares begin at multiples of `unit`."""
    units = -(-length // unit)
    return min(length, units * rank // ranks * unit), min(length, units * (rank + 1) // ranks * unit)
