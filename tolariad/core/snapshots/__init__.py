"""Snapshots in memory: when one is taken, in which slot, whether it is usable."""
