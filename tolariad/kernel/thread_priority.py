"""The core and the scheduling class of the kernel's thread."""

from __future__ import annotations

from typing import Protocol

from tolariad.core import messages as m


class Scheduling(Protocol):
    """Cores and scheduling classes. The kernel's thread calls both methods, for itself. Neither raises."""

    def take(self, context: m.ExecutionContextRecorded, trainer_pid: int) -> m.SchedulingRecorded:
        """Ask for the cores and the class that suit a trainer that is ready. Return what the system gave."""

    def give_back(self) -> None:
        """Undo `take`: the trainer is gone."""
