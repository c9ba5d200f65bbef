"""What a writer says about itself."""

from __future__ import annotations

import msgspec


class JournalStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Where the writer stands, for status and telemetry. `chain` is hex; `failed` is the reason, None while it works."""

    segment_no: int
    segment_offset: int
    segment_bytes: int
    last_seq: int
    chain: str
    spare_ready: bool
    spare_error: str | None
    poisoned: int
    failed: str | None
