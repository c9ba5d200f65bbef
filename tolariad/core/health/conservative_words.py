"""Conservative mode: the events that it begins and ends."""

from __future__ import annotations

from tolariad.core.base import Event, Seconds


class ConservativeModeEntered(Event, frozen=True, kw_only=True):
    """Conservative mode began: nothing new is started, telemetry is sampled, soft timeouts double.

    It never changes a weight, a rate or the order of data.
    """

    why: str


class ConservativeModeLeft(Event, frozen=True, kw_only=True):
    """Conservative mode ended: enough healthy epochs and time have passed, and no reason for it is left."""

    healthy_epochs: int
    seconds: Seconds
