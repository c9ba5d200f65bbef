"""Replay: from a journal's records to the state, for the daemon (strict) and for readers (lenient).

Promises: replay runs `apply` and nothing else. State hashes in the journal are compared on the way. A reader skips
events that it does not know and reports them; a writer refuses them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Final, Protocol, cast

import msgspec

from tolariad.core import messages as m
from tolariad.core.calc.steps.many import ManySteps, many_of
from tolariad.core.messages.vocabulary import Unknown, decode_event
from tolariad.core.state.run_state import FOLD_VERSION, RunState, apply, apply_steps, fold, hash_agrees, read_capture

# So many steps in a row are folded at once at most: they are held in memory.
_MANY_STEPS: Final = 1024
# Fewer take less time one after the other.
_FEW_STEPS: Final = 4
_TOLD_EVENTS: Final = 4096


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


class RowsLike(Protocol):
    """Completed steps that follow each other, out of a table of the journal."""

    @property
    def seq(self) -> int:
        """Return the sequence number of the first one."""

    @property
    def values(self) -> ManySteps:
        """Return the steps."""


class CaptureLike(Protocol):
    """A folded state at the beginning of a segment."""

    @property
    def body(self) -> bytes:
        """Return the bytes of a capture, see `tolariad.core.state.run_state`."""


class ReplayError(Exception):
    """This version cannot fold the journal, or folds it to another state than the one recorded."""


def unfoldable(events: str, error: Exception) -> ReplayError:
    """Return what to raise if `apply` raises: it accepts what a run can have recorded, and `events` were not."""
    return ReplayError(f"{events} cannot be folded, so no run has written it ({type(error).__name__}: {error})")


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
    records: Iterable[EntryLike | MarkLike | RowsLike],
    *,
    strict: bool = False,
    until_seq: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Replayed:
    """Fold the records after `state.seq`. `progress` is called with the sequence number from time to time.

    Raises ReplayError: a hash that differs, a gap, or (strict) an unknown event that does not say `skippable`.
    """
    folding = _Folding(state, strict=strict)
    told = state.seq // _TOLD_EVENTS
    for record in records:
        if hasattr(record, "kind"):
            folding.check(cast("MarkLike", record))
            continue
        if until_seq is not None and record.seq > until_seq:
            break
        if hasattr(record, "event"):
            folding.add(cast("EntryLike", record))
        else:
            folding.add_rows(record, until_seq)
        if progress is not None and record.seq // _TOLD_EVENTS != told:
            told = record.seq // _TOLD_EVENTS
            progress(record.seq)
    return Replayed(folding.folded(), folding.unknown)


class _Folding:
    """A replay under way. Steps in a row wait until there are some, since many at once are folded sooner."""

    def __init__(self, state: RunState, *, strict: bool) -> None:
        self._state = state
        self._strict = strict
        self._waiting: list[m.StepCompleted] = []
        self._version = ""
        self.unknown: dict[str, int] = {}

    def folded(self) -> RunState:
        """Return the state after all events so far. Raises ReplayError."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            first, last = self._state.seq + 1, self._state.seq + len(waiting)
            try:
                self._state = _after(self._state, waiting)
            except Exception as error:
                raise unfoldable(f"events {first} to {last}", error) from error
        return self._state

    def add(self, record: EntryLike) -> None:
        """Fold one more event. Raises ReplayError."""
        self._follows(record.seq)
        try:
            event = decode_event(record.event)
            # Exactly this type: the fold of many knows no other.
            if type(event) is m.StepCompleted:
                self._waiting.append(event)
                if len(self._waiting) == _MANY_STEPS:
                    self.folded()
                return
            if isinstance(event, Unknown):
                self._count_unknown(event, record.seq)
            self._version = event.version if isinstance(event, m.RunStarted | m.DaemonStarted) else self._version
            self._state = apply(self.folded(), event)
        except ReplayError:
            raise
        except Exception as error:
            # Bytes from elsewhere may hold anything.
            raise unfoldable(f"event {record.seq}", error) from error

    def add_rows(self, rows: RowsLike, until_seq: int | None) -> None:
        """Fold the steps of a table, up to event `until_seq`. Raises ReplayError."""
        self._follows(rows.seq)
        made = rows.values if until_seq is None else rows.values.part(0, until_seq - rows.seq + 1)
        state = self.folded()
        for first in range(0, made.size, _MANY_STEPS):
            state = apply_steps(state, made.part(first, first + _MANY_STEPS))
        self._state = state

    def _follows(self, seq: int) -> None:
        before = self._state.seq + len(self._waiting)
        if seq != before + 1:
            raise ReplayError(f"event {seq} follows event {before}: run `tolaria journal verify`")

    def _count_unknown(self, event: Unknown, seq: int) -> None:
        if self._strict and not event.skippable:
            by = f"tolariad {self._version} recorded it" if self._version else "another version recorded it"
            raise ReplayError(
                f"event {seq} is of type {event.type!r}, which this version does not know: {by}, and here is fold "
                f"{FOLD_VERSION}. Start that version, or read the journal with `tolaria events`"
            )
        self.unknown[event.type] = self.unknown.get(event.type, 0) + 1

    def check(self, mark: MarkLike) -> None:
        """Compare a recorded hash with the state; other marks mean nothing here. Raises ReplayError."""
        if getattr(mark.kind, "name", "") == "STATE_HASH":
            _check_hash(self.folded(), mark)


def _after(state: RunState, steps: list[m.StepCompleted]) -> RunState:
    return fold(state, steps) if len(steps) < _FEW_STEPS else apply_steps(state, many_of(steps))


def _check_hash(state: RunState, mark: MarkLike) -> None:
    if mark.seq != state.seq:
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
