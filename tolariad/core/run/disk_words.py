"""Space on the journal's disk: the events that it is low, and that it has recovered."""

from __future__ import annotations

from typing import ClassVar

from tolariad.core.base import Bytes, Event


class DiskLow(Event, frozen=True, kw_only=True):
    """Fewer than `floor` bytes are free on the journal's disk. The run pauses, and writes no checkpoint."""

    EMITTED_BY: ClassVar[str] = "daemon"

    free: Bytes
    floor: Bytes


class DiskRecovered(Event, frozen=True, kw_only=True):
    """The journal's disk has space again. A run that paused for it goes on. The cause is the DiskLow event."""

    EMITTED_BY: ClassVar[str] = "daemon"

    free: Bytes
    floor: Bytes
