"""The Protocol through which the control server uses the daemon.

Promises: every method is called on the event loop and returns at once. `answer` and listeners are called on the loop
too; the daemon passes them over from the kernel's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from tolariad.control.budgets import BudgetTable
from tolariad.control.rates import RateTable
from tolariad.control.status import RunStatus
from tolariad.core.base import Actor, Event
from tolariad.core.decision import Answer
from tolariad.core.vocabulary import AnyCommand


class Change(msgspec.Struct, frozen=True, gc=False):
    """Events that became durable, with ascending sequence numbers. One Change may hold several turns."""

    events: tuple[tuple[int, Event], ...]


class ControlPort(Protocol):
    """The services of the daemon for its control server."""

    @property
    def journal_path(self) -> Path:
        """The run's journal folder."""

    @property
    def durable_seq(self) -> int:
        """The sequence number of the last durable event."""

    def status(self) -> RunStatus:
        """Return the run's status as of the last durable event. Cheap; never waits."""

    def rates(self) -> RateTable:
        """Return the learning rates as of the last durable event. Cheap; never waits."""

    def budgets(self) -> BudgetTable:
        """Return the budgets as of the last durable event. Cheap; never waits."""

    def submit(self, command: AnyCommand, actor: Actor, answer: Callable[[Answer], None]) -> None:
        """Submit an order to the kernel. `answer` is called once, on the loop, when the order is durable or refused."""

    def subscribe(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Call `listener` with every durable event from now on, until the returned function is called.

        Without a listener the daemon need not wake its loop. The events of a turn may come before or after its answers.
        """
