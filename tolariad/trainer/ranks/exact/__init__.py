"""Exact sums: the gradients of a step have the same bits, whatever the number of ranks.

A step has V *leaves*, its micro-batches. Each rank computes a block of neighbouring leaves. The gradients of all leaves
are added in the order of the leaves, ((g0 + g1) + g2) + …, which is the order of one process that accumulates V of
them. They meet in a mapping that all ranks of the node share, so nothing is sent.

Promises: after a step every rank has the same gradients, and they do not depend on the number of ranks. A rank that has
ended, is stopped or gave up is named within a bounded time, and no rank goes on with half a sum.
"""

from tolariad.trainer.ranks.exact.meeting import RankLost
from tolariad.trainer.ranks.exact.order import block
from tolariad.trainer.ranks.exact.sums import ExactSum

__all__ = ["ExactSum", "RankLost", "block"]
