"""Checkpoints on disk: when one is due, the catalogue, retention."""
