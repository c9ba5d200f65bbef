"""Stages, gates and blending of seeds, as values."""
