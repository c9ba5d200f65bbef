"""Space on the journal's disk: what was seen of it, and what became of it.

It must not know: files, spare segments.
"""

from __future__ import annotations

from typing import ClassVar

from tolariad.core.base import Bytes, Event


class DiskLow(Event, frozen=True, kw_only=True):
    """Fewer than `floor` bytes are free on the journal's disk: the run pauses, and writes no checkpoint."""

    EMITTED_BY: ClassVar[str] = "daemon"

    free: Bytes
    floor: Bytes


class DiskRecovered(Event, frozen=True, kw_only=True):
    """There is space again; a run that paused for want of it goes on by itself. Its cause is the DiskLow."""

    EMITTED_BY: ClassVar[str] = "daemon"

    free: Bytes
    floor: Bytes


EVENTS = (DiskLow, DiskRecovered)
