"""Look at an epoch's first batch: whether its indices were drawn in a way that a resume cannot repeat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader

from tolariad.trainer.data import findings
from tolariad.trainer.data.feed import Finding
from tolariad.trainer.data.sources import Source
from tolariad.trainer.data.walk import has_thread_of_the_user


def hidden_draws(data: Any, sources: Sequence[Source]) -> Iterator[Finding]:
    """Yield what hides the indices of the first batch from the feed: a thread of the user's, or a loader's own way."""
    orders = [source.order for source in sources]
    is_hidden = bool(orders) and not any(order.drawn for order in orders) and has_thread_of_the_user()
    if is_hidden or any(order.is_in_thread for order in orders):
        yield findings.in_a_thread()
    elif isinstance(data, DataLoader) and not orders[0].drawn:
        yield findings.bypasses_order()
