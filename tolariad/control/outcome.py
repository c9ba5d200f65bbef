"""The outcome of an order: which events end it, for each command.

Promises: an order whose event is durable has one outcome. It is found in the live events or, for a repeated id, in the
journal.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from tolariad.core.checkpoints import words as ck
from tolariad.core.control import words as cv
from tolariad.core.health import emergency_words as em
from tolariad.core.health import quarantine_words as qn
from tolariad.core.rates import words as lv
from tolariad.core.rollback import words as rb
from tolariad.core.run import words as rv
from tolariad.core.vocabulary import Event, Unknown


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The end of an order: done, failed, overtaken by another event, or ended with the daemon.

    If the order acts from a step on, `step` is the first such step.
    """

    state: str
    seq: int | None = None
    event: str | None = None
    step: int | None = None
    why: str | None = None


class _Ends(msgspec.Struct, frozen=True):
    """The event types that end an order: `done` and `failed` only among its own consequences, the others anywhere."""

    done: tuple[type[Event], ...]
    failed: tuple[type[Event], ...] = ()
    done_by_any: tuple[type[Event], ...] = ()
    overtaken_by: tuple[type[Event], ...] = ()


_RUN_ENDS: Final = (rv.RunCompleted, rv.RunFailed, rv.RunStopped)
_ENDS: Final[dict[type[cv.Command], _Ends]] = {
    cv.Pause: _Ends((rv.RunPaused,), overtaken_by=(cv.ResumeRequested, cv.StopRequested, rv.RunFrozen, *_RUN_ENDS)),
    cv.Resume: _Ends((rv.RunResumed,), overtaken_by=(cv.StopRequested, rv.RunFrozen, *_RUN_ENDS)),
    # A stop that is followed by a stronger stop ends with that one. A run that completes first needs no stop.
    cv.Stop: _Ends((rv.RunStopped,), done_by_any=(rv.RunStopped,), overtaken_by=(rv.RunCompleted, rv.RunFailed)),
    cv.Checkpoint: _Ends((ck.CheckpointCommitted,), failed=(ck.CheckpointAborted,), overtaken_by=_RUN_ENDS),
    lv.LrSet: _Ends((lv.RateChanged,), failed=(lv.RateOrderAborted,), overtaken_by=_RUN_ENDS),
    rb.Rollback: _Ends(
        (rb.RolledBack,), failed=(rb.RollbackAborted,), overtaken_by=(cv.StopRequested, rv.RunFrozen, *_RUN_ENDS)
    ),
    # An emergency is done when its reaction is done. EmergencyRaised alone ends it only if no reaction follows.
    em.RaiseEmergency: _Ends(
        (em.EmergencyRaised, rb.RolledBack),
        failed=(rb.RollbackAborted, rv.RunFrozen),
        overtaken_by=(cv.StopRequested, rv.RunFrozen, *_RUN_ENDS),
    ),
    # The trainer is told at once; a later trainer is told with its order to train.
    qn.QuarantineAdd: _Ends((qn.QuarantineAdded,)),
    qn.QuarantineRemove: _Ends((qn.QuarantineRemoved,)),
    cv.Note: _Ends((cv.NoteAdded,), done_by_any=(cv.NoteAdded,)),
}
# For CRITICAL the freeze is the success. For a lower level it means that there was nothing to roll back to.
_CRITICAL: Final = _Ends((em.EmergencyRaised, rv.RunFrozen), overtaken_by=_RUN_ENDS)
_LEADS_ON: Final = (em.Follows.ROLLBACK, em.Follows.HALT)
_ENDING: Final = frozenset(kind for ends in _ENDS.values() for group in msgspec.structs.astuple(ends) for kind in group)


def may_end(event: Event | Unknown) -> bool:
    """Return whether an event can end an order at all. Other events need not be kept for a pending order."""
    return type(event) in _ENDING


def outcome_of(command: cv.Command, order_seq: int, events: Iterable[tuple[int, Event | Unknown]]) -> Outcome | None:
    """Return the outcome of the order recorded as `order_seq`, from later events in order; None if it has not ended."""
    is_critical = isinstance(command, em.RaiseEmergency) and command.level is em.Level.CRITICAL
    ends = _CRITICAL if is_critical else _ENDS[type(command)]
    for seq, event in events:
        if seq < order_seq or isinstance(event, Unknown) or _leads_on(event):
            continue
        own = order_seq in (event.root, seq)
        name = type(event).__name__
        if (own and isinstance(event, ends.done)) or isinstance(event, ends.done_by_any):
            # A stop without its last checkpoint is done too. `why` says that the checkpoint is missing.
            why = (event.why or None) if isinstance(event, rv.RunStopped) else None
            return Outcome(state="done", seq=seq, event=name, step=getattr(event, "applied_before_step", None), why=why)
        if own and isinstance(event, ends.failed):
            return Outcome(state="failed", seq=seq, event=name, why=getattr(event, "why", None))
        if seq > order_seq and isinstance(event, ends.overtaken_by):
            return Outcome(state="overtaken", seq=seq, event=name, why=getattr(event, "why", None))
    return None


def _leads_on(event: Event) -> bool:
    return isinstance(event, em.EmergencyRaised) and event.follows in _LEADS_ON


def ended_with_daemon(command: cv.Command) -> Outcome:
    """Return the outcome if the daemon ends before the order does. For a stop, that is the success."""
    if isinstance(command, cv.Stop):
        return Outcome(state="done")
    return Outcome(state="ended", why="the daemon ended first; the order is in the journal")
