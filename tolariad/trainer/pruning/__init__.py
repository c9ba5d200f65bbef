"""Structured pruning of a model: which channels depend on each other, masks over them, and their removal."""
