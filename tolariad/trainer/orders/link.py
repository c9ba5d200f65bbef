"""The trainer's parts of the channel, put together over its end of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tolariad.trainer.orders.gate import Gate
from tolariad.trainer.orders.inbox import OrderInbox
from tolariad.trainer.orders.reporter import Progress, Reporter

if TYPE_CHECKING:
    from tolariad.channel import Page, TrainerEnd


class Link(NamedTuple):
    """What a handler needs to hear orders, to report, and to wait."""

    page: Page
    progress: Progress
    reporter: Reporter
    inbox: OrderInbox
    gate: Gate

    @classmethod
    def over(cls, end: TrainerEnd) -> Link:
        """Make the parts over this end of the channel."""
        progress = Progress()
        reporter = Reporter(end, progress)
        inbox = OrderInbox(end, reporter, progress)
        return cls(end.page, progress, reporter, inbox, Gate(end, reporter, inbox))
