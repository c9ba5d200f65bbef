"""Runs that train in this process: their recorders start quickly, and a walk enters none of pytest's objects."""

from __future__ import annotations

from tests.forked_recorders import a_recorder_of_its_own, recorders_are_forks
from tests.quick_torch import enter_no_pytest

__all__ = ["a_recorder_of_its_own", "recorders_are_forks"]
enter_no_pytest()
