"""The figures that a writer reports about itself."""

from __future__ import annotations

import msgspec


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
