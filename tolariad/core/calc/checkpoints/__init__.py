"""The pace of checkpoints, as values."""
