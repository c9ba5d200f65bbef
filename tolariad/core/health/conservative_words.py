"""Conservative mode: when the run becomes careful, and when it stops being so.

It must not know: what it restrains.
"""

from __future__ import annotations

from tolariad.core.base import Event, Seconds


class ConservativeModeEntered(Event, frozen=True, kw_only=True):
    """The run is careful from now on: nothing new is started, telemetry is sampled, soft timeouts double.

    It never changes a weight, a rate or the order of data.
    """

    why: str


class ConservativeModeLeft(Event, frozen=True, kw_only=True):
    """Enough healthy epochs and time have passed, and nothing that led into it still stands."""

    healthy_epochs: int
    seconds: Seconds


EVENTS = (ConservativeModeEntered, ConservativeModeLeft)
