"""Recorders of the runs that train in this process start quickly."""

from __future__ import annotations

from tests.forked_recorders import a_recorder_of_its_own, recorders_are_forks

__all__ = ["a_recorder_of_its_own", "recorders_are_forks"]
