"""The actions that a run took by itself and reports at once: slice, apply table, and which events those are.

The console and `tolaria status` show them as the sentences of `core.sentences`. The slice holds the events and not
their sentences, so that a change of wording does not change the state.

Invariants: at most LATEST_MAX are kept; the journal has the others. If there is no room, a skipped batch leaves first:
a hundred of them must not hide a rollback.
"""

from __future__ import annotations

from typing import Final, TypeAlias, get_args

import msgspec
from msgspec.structs import replace

from tolariad.core.base import ApplyTable, Cause, Event
from tolariad.core.detection.rules import Finding
from tolariad.core.health import quarantine_words as qn
from tolariad.core.health import words as hv
from tolariad.core.rates import words as lr
from tolariad.core.rollback import words as rb
from tolariad.core.run import words as run
from tolariad.core.steps import words as st
from tolariad.core.trainer import words as tr

LATEST_MAX: Final = 16
# For the first two a StepSkipped is reported if a batch was skipped. The duration of a step concerns the machine only.
_SAID_OTHERWISE: Final = frozenset({Finding.NON_FINITE, Finding.SPIKE, Finding.STALL})

SaidEvent: TypeAlias = (
    st.StepSkipped
    | rb.RolledBack
    | rb.RollbackEscalated
    | rb.RollbackAborted
    | rb.RatesBackedOff
    | lr.LrViolationDetected
    | hv.ConservativeModeEntered
    | hv.ConservativeModeLeft
    | run.RunFrozen
    | hv.InstabilityDetected
    | qn.QuarantineAdded
    | run.DiskLow
    | run.DiskRecovered
    | tr.ExecutionContextRecorded
)


class SaidEntry(msgspec.Struct, frozen=True):
    """One reported event. `number`: counts all, from 1. `start`: the daemon's start. `seq`: the event's number."""

    number: int
    start: int
    seq: int
    event: SaidEvent


class Said(msgspec.Struct, frozen=True):
    """Slice of RunState: the latest, oldest first. Numbers are missing if skipped batches left.

    `starts`: of the daemon.
    """

    total: int = 0
    starts: int = 0
    latest: tuple[SaidEntry, ...] = ()


def is_said(event: Event) -> bool:
    """Return whether the run reports this event at once."""
    match event:
        case st.StepSkipped(reason=reason):
            # With fp16 an overflow is part of every healthy run. A batch in quarantine was reported when it was put
            # there.
            return reason not in (st.SkipReason.OVERFLOW, st.SkipReason.QUARANTINED)
        case hv.InstabilityDetected(finding=finding, level=level):
            # A finding with a level leads to a rollback or a halt, which gives it as the reason.
            return level is None and finding not in _SAID_OTHERWISE
        case qn.QuarantineAdded(actor=actor):
            return actor is None
        case tr.ExecutionContextRecorded(other_data=other):
            return bool(other)
        case _:
            return type(event) in APPLY and not isinstance(event, run.DaemonStarted)


def _said(s: Said, e: SaidEvent, at: Cause) -> Said:
    if not is_said(e):
        return s
    line = SaidEntry(s.total + 1, s.starts, at.seq, e)
    return replace(s, total=s.total + 1, latest=(*_with_room(s.latest), line))


def _with_room(latest: tuple[SaidEntry, ...]) -> tuple[SaidEntry, ...]:
    """Drop the oldest skipped batch, or the oldest of all, if there is no room for one more."""
    if len(latest) < LATEST_MAX:
        return latest
    least = next((n for n, one in enumerate(latest) if isinstance(one.event, st.StepSkipped)), 0)
    return (*latest[:least], *latest[least + 1 :])


def _started(s: Said, _: run.DaemonStarted, __: Cause) -> Said:
    return replace(s, starts=s.starts + 1)


APPLY: Final[ApplyTable] = {
    **dict.fromkeys(get_args(SaidEvent), _said),
    run.DaemonStarted: _started,
}
