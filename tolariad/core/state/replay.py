"""Replay: from a journal's records to the state, for the daemon (strict) and for readers (lenient).

Promises: replay runs `apply` and nothing else. State hashes in the journal are compared on the way. A reader skips
events that it does not know and reports them; a writer refuses them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from tolariad.core import messages as m
from tolariad.core.messages.vocabulary import Unknown, decode_event
from tolariad.core.state.run_state import FOLD_VERSION, RunState, apply, hash_agrees, read_capture


class EntryLike(Protocol):
    """A journaled event."""

    @property
    def seq(self) -> int:
        """Return its sequence number."""

    @property
    def event(self) -> msgspec.Raw:
        """Return its msgpack map."""


class MarkLike(Protocol):
    """A record without a sequence number of its own."""

    @property
    def kind(self) -> enum.Enum | int:
        """Return the kind of record. Only `STATE_HASH` is used here. A number if a newer version wrote it."""

    @property
    def seq(self) -> int:
        """Return the number of the last event before it."""

    @property
    def body(self) -> bytes:
        """Return its contents."""


class CaptureLike(Protocol):
    """A folded state at the beginning of a segment."""

    @property
    def body(self) -> bytes:
        """Return the bytes of a capture, see `tolariad.core.state.run_state`."""


class ReplayError(Exception):
    """This version cannot fold the journal, or folds it to another state than the one recorded."""


class Replayed(msgspec.Struct, frozen=True):
    """A folded state, and the unknown event types that were skipped, with their counts."""

    state: RunState
    unknown: dict[str, int]


def newest_usable(captures: Iterable[CaptureLike]) -> RunState:
    """Return the state to fold from: the first capture of this FOLD_VERSION, else the empty state."""
    for one in captures:
        try:
            state = read_capture(one.body)
        except (ValueError, RecursionError):
            continue  # no capture of ours: the events before it say the same
        if state is not None:
            return state
    return RunState()


def replay_records(
    state: RunState,
    records: Iterable[EntryLike | MarkLike],
    *,
    strict: bool = False,
    until_seq: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Replayed:
    """Fold the records after `state.seq`. `progress` is called with the sequence number from time to time.

    Raises ReplayError: a hash that differs, a gap, or (strict) an unknown event that does not say `skippable`.
    """
    unknown: dict[str, int] = {}
    version = ""
    for record in records:
        if not hasattr(record, "event"):
            _check_mark(state, record)
            continue
        if until_seq is not None and record.seq > until_seq:
            break
        if record.seq != state.seq + 1:
            raise ReplayError(f"event {record.seq} follows event {state.seq}: run `tolaria journal verify`")
        try:
            event = decode_event(record.event)
            if isinstance(event, Unknown):
                _count_unknown(event, record.seq, unknown, recorded_by=version, strict=strict)
            version = event.version if isinstance(event, m.RunStarted | m.DaemonStarted) else version
            state = apply(state, event)
        except ReplayError:
            raise
        except Exception as error:
            # `apply` accepts what a run can have recorded. Bytes from elsewhere may hold anything.
            why = f"{type(error).__name__}: {error}"
            raise ReplayError(f"event {record.seq} cannot be folded, so no run has written it ({why})") from error
        if progress is not None and state.seq % 4096 == 0:
            progress(state.seq)
    return Replayed(state, unknown)


def _count_unknown(event: Unknown, seq: int, unknown: dict[str, int], *, recorded_by: str, strict: bool) -> None:
    if strict and not event.skippable:
        by = f"tolariad {recorded_by} recorded it" if recorded_by else "another version recorded it"
        raise ReplayError(
            f"event {seq} is of type {event.type!r}, which this version does not know: {by}, and here is fold "
            f"{FOLD_VERSION}. Start that version, or read the journal with `tolaria events`"
        )
    unknown[event.type] = unknown.get(event.type, 0) + 1


def _check_mark(state: RunState, mark: MarkLike) -> None:
    if getattr(mark.kind, "name", "") != "STATE_HASH" or mark.seq != state.seq:
        return
    try:
        agrees = hash_agrees(state, mark.body)
    except (ValueError, RecursionError):
        agrees = False  # no hash of ours
    if not agrees:
        raise ReplayError(
            f"the state after event {state.seq} is not the one that was recorded when it was live. "
            "`apply` has changed without a new FOLD_VERSION, or the journal was edited"
        )
