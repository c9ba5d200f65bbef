"""The figures that a writer reports about itself."""

from __future__ import annotations

from typing import Self

import msgspec

from journal.appending import Appender
from journal.scan import ScanResult


class JournalStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a writer, for status and telemetry.

    `failed` is the reason if the journal is frozen, else None. `packed` counts the segments packed since the journal
    was opened. `direct` is true if writes bypass the page cache; if not, `direct_refused` is the system's reason.
    """

    segment_no: int
    segment_offset: int
    spare_ready: bool
    spare_error: str | None
    packed: int
    pack_error: str | None
    direct: bool
    direct_refused: str | None
    poisoned: int
    failed: str | None

    @classmethod
    def of(cls, appender: Appender | None, stop: ScanResult | None, *, segments: int) -> Self:
        """Return the state of a writer; before `begin` it has no appender, and the scan's results count."""
        # No lock: each object is read once. A status may mix two neighbouring moments, which does no harm.
        current = appender.current if appender is not None else None
        tail = current.tail if current is not None else stop.tail if stop is not None else None
        failure = appender.failure if appender is not None else None
        return cls(
            segment_no=current.header.segment_no if current is not None else segments,
            segment_offset=tail.offset if tail is not None else 0,
            spare_ready=appender.spares.ready if appender is not None else False,
            spare_error=appender.spares.last_error if appender is not None else None,
            packed=appender.packer.packed if appender is not None else 0,
            pack_error=appender.packer.last_error if appender is not None else None,
            direct=current.direct if current is not None else False,
            direct_refused=appender.direct.refused if appender is not None else None,
            poisoned=appender.poisoned if appender is not None else 0,
            failed=failure.reason if failure is not None else None,
        )
