"""What a user does to go on after a failure, in the words of the form in use: a command line, or a program."""

from __future__ import annotations

from tolariad.core import state as st
from tolariad.core.calc.settings.task_defaults import GIVEN


def is_program(state: st.HasRun) -> bool:
    """Return whether a program trains: by `Tolaria.train`, or in a loop of its own. It has no command line."""
    return state.run.task == GIVEN


def start_again(state: st.HasRun) -> str:
    """Return how a failed run is started again, as the end of a sentence."""
    return "start the program again" if is_program(state) else "start with --retry"


def accept_data(state: st.HasRun) -> str:
    """Return the option of a start that goes on with other data."""
    return "Tolaria(..., accept_data=True)" if is_program(state) else "--accept-data"


def accept_config(state: st.HasRun) -> str:
    """Return how a failed run is started again with another configuration, as the end of a sentence."""
    return (
        "start the program again with Tolaria(..., accept_config=True)"
        if is_program(state)
        else "start with --retry --accept-config"
    )
