"""The task's own state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tolariad.trainer.parts.part import Part, Restoring, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tolariad.trainer.checkpoints.loaded import Loaded
    from tolariad.trainer.setup import Setup


class TaskPart(Part):
    """What the task's `state_dict` returns, if it has one."""

    name = "task"

    def __init__(self, setup: Setup) -> None:
        self._task = setup.task

    def state(self) -> State:
        state_dict = getattr(self._task, "state_dict", None)
        return State({"task": state_dict() if callable(state_dict) else None})

    def load(self, held: Restoring) -> None:
        load, state = getattr(self._task, "load_state_dict", None), held.entry("task")
        if callable(load) and state is not None:
            load(state)

    def differing(self, now: Loaded, held: Loaded) -> Iterator[str]:
        """Compare nothing: what loads from disk may convert a state that an older version of it saved."""
        yield from ()
