"""Branches and the table of steps, as values."""
