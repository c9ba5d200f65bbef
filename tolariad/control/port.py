"""The daemon as the control server sees it: a Protocol, so that neither knows the other.

Promises: everything here is called on the event loop and answers at once; `answer` and listeners are called on the loop
too (the daemon brings them over from the kernel's thread). It must not know: threads, the kernel, sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from tolariad.control.budgets import BudgetTable
from tolariad.control.rates import RateTable
from tolariad.control.status import RunStatus
from tolariad.core.decision import Answer
from tolariad.core.vocabulary import Actor, AnyCommand, Event


class Change(msgspec.Struct, frozen=True, gc=False):
    """What became durable: events with their sequence numbers, ascending. Several turns may come as one."""

    events: tuple[tuple[int, Event], ...]


class ControlPort(Protocol):
    """What the daemon offers to its control server."""

    @property
    def journal_path(self) -> Path:
        """The run's journal folder."""

    @property
    def durable_seq(self) -> int:
        """The last durable event's number."""

    def status(self) -> RunStatus:
        """The run as of the last durable event; cheap, never waits."""

    def rates(self) -> RateTable:
        """The learning rates as of the last durable event; cheap, never waits."""

    def budgets(self) -> BudgetTable:
        """The budgets as of the last durable event; cheap, never waits."""

    def submit(self, command: AnyCommand, actor: Actor, answer: Callable[[Answer], None]) -> None:
        """Hand an order to the kernel. `answer` is called once, on the loop, when the order is durable or refused."""

    def subscribe(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Hear of every durable event from now on; the returned function ends that.

        While nobody listens the daemon need not wake its loop. A turn's events are heard of before its answers or after
        them, both are fine.
        """
