"""When the journal gets a capture (folding starts there) and a hash (replay compares it) of the state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from journal import FrameKind
from tolariad.core.state.run_state import RunState, capture, hash_mark

# Replay computes the hash again and compares. More of them would find a defect of `apply` earlier, at the price of
# encoding the whole state each time.
STATE_HASH_EVENTS: Final = 10_000
# A start folds at most this many events after the last capture (0.1 s); so does a reader of a run without a daemon.
CAPTURE_EVENTS: Final = 4096


class StateMarks:
    """Which marks are due after which event. Each is due once in so many events."""

    def __init__(self, seq: int) -> None:
        """`seq`: the number of the last durable event."""
        self._hashed = seq // STATE_HASH_EVENTS
        self._captured = seq // CAPTURE_EVENTS

    def due(self, state: RunState) -> Iterator[tuple[FrameKind, bytes]]:
        """Yield the marks to write after `state.seq`, the last durable event."""
        # By quotient: one turn may record many events, and pass the multiple itself.
        hashed, captured = state.seq // STATE_HASH_EVENTS, state.seq // CAPTURE_EVENTS
        if hashed != self._hashed:
            self._hashed = hashed
            yield FrameKind.STATE_HASH, hash_mark(state)
        if captured != self._captured:
            self._captured = captured
            yield FrameKind.CAPTURE, capture(state)
