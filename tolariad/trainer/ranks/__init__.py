"""Training by several processes, the ranks of a group, which make every step together (docs/ranks.md).

Every rank runs the trainer's own code. What differs is in three places: the numbers of a step are exchanged before the
verdict, rank 0 alone passes the gate and lets the others update, and orders act at points that all ranks come to
(`tolariad/channel/points.py`). `exact/` sums gradients in an order that does not depend on the number of ranks. A run
of one process imports nothing of this.
"""
