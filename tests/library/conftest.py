"""Runs of a user's program: their folders are in memory."""

from tests.in_memory import tmp_path

__all__ = ["tmp_path"]
