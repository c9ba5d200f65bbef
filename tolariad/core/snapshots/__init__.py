"""Snapshots in memory: when one is taken, in which slot, and whether it is usable."""
