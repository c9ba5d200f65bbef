"""Who trains the run: a task of a daemon, or a program of its own."""

from __future__ import annotations

from tolariad.core import state as st
from tolariad.core.calc.settings.task_defaults import GIVEN


def is_program(state: st.HasRun) -> bool:
    """Return whether a program trains: by `Tolaria.train`, or in a loop of its own. It has no command line."""
    return state.run.task == GIVEN
