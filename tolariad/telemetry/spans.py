"""Pieces of work of a run with their begin and end, made from its events: for traces, live and of an old run. Pure.

Promises: the same events give the same spans with the same ids, so that a second export adds nothing new. A span is
made when the event that ends it comes; one whose begin was not seen is left out. Steps have no spans: making one costs
more than recording the step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Final

import msgspec

from tolariad.core import messages as m

Value = str | int | float
# Work that is in progress at the same time is far less.
_OPEN_MAX: Final = 1024


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of work. `span_id`, `parent_id`: 64 bits, 0 for no parent. Times are Unix nanoseconds.

    `seq`: the event that ended it. `failed`: why it failed; empty if it did not.
    """

    span_id: int
    parent_id: int
    name: str
    start_ns: int
    end_ns: int
    seq: int
    attributes: dict[str, Value] = {}
    failed: str = ""


class _Open(msgspec.Struct, frozen=True):
    seq: int
    wall: int
    attributes: dict[str, Value]


# Of the events that begin work: the name of the work, the field that tells it from others of its name, attributes.
_BEGINS: Final[dict[type[m.Event], tuple[str, str, tuple[str, ...]]]] = {
    m.TrainerStarted: ("trainer", "incarnation", ("incarnation", "pid")),
    m.CheckpointBegun: ("checkpoint", "id", ("id", "reason")),
    m.RollbackBegun: ("rollback", "rollback", ("checkpoint", "tier", "from_step", "to_step", "why")),
    m.PruneCycleBegun: ("prune cycle", "cycle", ("cycle", "checkpoint", "step")),
}
# Of those that end it: name, field, attributes, and the field that says why it failed, if it did.
_ENDS: Final[dict[type[m.Event], tuple[str, str, tuple[str, ...], str]]] = {
    m.TrainerDied: ("trainer", "incarnation", ("step", "exit_code", "signal"), "reason"),
    m.TrainerEnded: ("trainer", "incarnation", (), ""),
    m.CheckpointCommitted: ("checkpoint", "id", ("step", "epoch", "size"), ""),
    m.CheckpointAborted: ("checkpoint", "id", (), "why"),
    m.RolledBack: ("rollback", "rollback", ("step", "epoch", "branch"), ""),
    m.RollbackAborted: ("rollback", "rollback", (), "why"),
    m.PruneAnalyzed: ("prune cycle", "cycle", (), ""),
    m.PruneCycleFailed: ("prune cycle", "cycle", (), "why"),
    m.PruneCycleCancelled: ("prune cycle", "cycle", (), "why"),
}
# Those whose event has the duration.
_MEASURED: Final[dict[type[m.Event], tuple[str, tuple[str, ...]]]] = {
    m.EpochFinished: ("epoch", ("epoch", "step", "steps", "train_loss")),
    m.ValidationFinished: ("validation", ("epoch", "step", "samples")),
}
_RUN_ENDS: Final = (m.RunCompleted, m.RunStopped, m.RunFailed)


class Spans:
    """Makes the spans of one run from its events, in their order."""

    def __init__(self, run_id: bytes, started_ns: int = 0) -> None:
        """`started_ns`: when the run began, if its first event will not come."""
        self._run_id = run_id
        self._started_ns = started_ns
        self._open: dict[tuple[str, Value], _Open] = {}
        self._run = self._id(0)
        self._acts: dict[type[m.Event], Callable[[int, Any], Span | None]] = {
            m.RunStarted: self._run_started,
            **dict.fromkeys(_RUN_ENDS, self._run_ended),
            **dict.fromkeys(_BEGINS, self._begun),
            **dict.fromkeys(_ENDS, self._ended),
            **dict.fromkeys(_MEASURED, self._measured),
        }

    def add(self, seq: int, event: m.Event) -> Span | None:
        """Return the span that this event ends, or None."""
        act = self._acts.get(type(event))
        return None if act is None else act(seq, event)

    def _id(self, seq: int) -> int:
        """Return the id of the span that begins, or is measured, at this event; 0: that of the run."""
        digest = hashlib.blake2b(seq.to_bytes(8), key=self._run_id, digest_size=8).digest()
        return int.from_bytes(digest) or 1

    def _run_started(self, _: int, event: m.RunStarted) -> None:
        self._started_ns = event.wall

    def _run_ended(self, seq: int, event: m.Event) -> Span:
        # A run that goes on afterwards ends once more, with the same id and a later end.
        failed = event.why if isinstance(event, m.RunFailed) else ""
        return Span(
            span_id=self._run,
            parent_id=0,
            name="run",
            start_ns=self._started_ns or event.wall,
            end_ns=event.wall,
            seq=seq,
            attributes={"end": type(event).__name__},
            failed=failed,
        )

    def _begun(self, seq: int, event: m.Event) -> None:
        name, field, attributes = _BEGINS[type(event)]
        if len(self._open) >= _OPEN_MAX:  # what never ends is forgotten, the oldest first
            del self._open[next(iter(self._open))]
        self._open[name, getattr(event, field)] = _Open(seq, event.wall, _values(event, attributes))

    def _ended(self, seq: int, event: m.Event) -> Span | None:
        name, field, attributes, why = _ENDS[type(event)]
        begun = self._open.pop((name, getattr(event, field)), None)
        if begun is None:
            return None
        return Span(
            span_id=self._id(begun.seq),
            parent_id=self._run,
            name=name,
            start_ns=begun.wall,
            # Wall clocks go back; a span does not.
            end_ns=max(begun.wall, event.wall),
            seq=seq,
            attributes={**begun.attributes, **_values(event, attributes)},
            failed=str(_values(event, (why,))[why]) if why else "",
        )

    def _measured(self, seq: int, event: m.EpochFinished | m.ValidationFinished) -> Span:
        name, attributes = _MEASURED[type(event)]
        metrics = event.metrics if isinstance(event, m.ValidationFinished) else {}
        return Span(
            span_id=self._id(seq),
            parent_id=self._run,
            name=name,
            start_ns=max(0, event.wall - int(event.seconds * 1e9)),
            end_ns=event.wall,
            seq=seq,
            attributes={**{f"metric.{key}": value for key, value in metrics.items()}, **_values(event, attributes)},
        )


def _values(event: m.Event, names: tuple[str, ...]) -> dict[str, Value]:
    """Return these fields of an event; those that it does not have, and None, are left out."""
    found = {name: getattr(event, name) for name in names}
    return {name: getattr(value, "value", value) for name, value in found.items() if value is not None}
