"""The events that are reported at once to the people who watch a run: slice, apply table, and list.

The console and `tolaria status` show them as the sentences of `core.text.sentences`. The slice holds the events and not
their sentences, so that a change of wording does not change the state.

Invariants: at most LATEST_MAX are kept, and the last of each kind of trouble with their number; the journal has the
others. If there is no room, a skipped batch leaves first: a hundred of them must not hide a rollback.
"""

from __future__ import annotations

from typing import Final, TypeAlias, get_args

import msgspec
from msgspec.structs import replace

from tolariad.core.base import Cause, Event
from tolariad.core.checkpoints import words as ck
from tolariad.core.control import words as cv
from tolariad.core.detection.rules import Finding
from tolariad.core.folding import ApplyTable
from tolariad.core.health import quarantine_words as qn
from tolariad.core.health import words as hv
from tolariad.core.pruning import mask_words as mk
from tolariad.core.pruning import words as pr
from tolariad.core.rates import hyper_words as hp
from tolariad.core.rates import words as lr
from tolariad.core.rollback import words as rb
from tolariad.core.run import words as run
from tolariad.core.seeds import words as sd
from tolariad.core.seeds.stages import Stage
from tolariad.core.steps import words as st
from tolariad.core.strategy import words as gv
from tolariad.core.text.phrases import last_line
from tolariad.core.trainer import words as tv

LATEST_MAX: Final = 16
# A hook that sets a rate at every step is corrected at every step. A start says so this often, and then once more.
CORRECTIONS_SAID_MAX: Final = 3
FURTHER_CORRECTIONS: Final = (
    "Learning rates are corrected again and again; further corrections are only recorded. "
    "`tolaria events RUN -t LrViolationDetected` lists them."
)
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
    | tv.TrainerDied
    | tv.ExecutionContextRecorded
    | tv.InexactDataFound
    | tv.DataNoted
    | ck.CheckpointAborted
    | ck.CheckpointRejected
    | ck.CheckpointUnfit
    | ck.StorageExhausted
    | ck.RerunFinished
    | ck.RerunDiverged
    | lr.RateOrdered
    | cv.StopRequested
    | cv.ReportRefused
    | sd.SeedMoved
    | sd.SeedMoveAborted
    | gv.StrategyTimedOut
    | gv.StrategyVoted
    | gv.BreakerSet
    | hp.HyperparametersOrdered
    | pr.PruneCycleFailed
    | pr.PruneBreakerOpened
    | mk.MasksApplied
    | mk.MasksAborted
    | mk.MaskSetPassed
    | mk.MaskSetRejected
    | mk.MasksReleased
    | mk.MasksReleaseAborted
    | mk.ModelCompacted
    | mk.CompactionAborted
)
# Reported, but no trouble: orders, and the ends of troubles.
_NO_TROUBLE: Final = (
    rb.RatesBackedOff,
    hv.ConservativeModeLeft,
    qn.QuarantineAdded,
    run.DiskRecovered,
    lr.RateOrdered,
    cv.StopRequested,
    sd.SeedMoved,
    sd.SeedMoveAborted,
    gv.BreakerSet,
    hp.HyperparametersOrdered,
    mk.MasksApplied,
    mk.MaskSetPassed,
    mk.MasksReleased,
    mk.ModelCompacted,
    tv.DataNoted,
)
# Ends that an order or the daemon caused.
_TOLD_TO_END: Final = (tv.DeathReason.WITH_DAEMON, tv.DeathReason.KILLED)
_OUTPUT_CHARACTERS_MAX: Final = 500


class SaidEntry(msgspec.Struct, frozen=True):
    """One reported event. `number`: counts all, from 1. `start`: the daemon's start. `seq`: the event's number."""

    number: int
    start: int
    seq: int
    event: SaidEvent


class TroubleKind(msgspec.Struct, frozen=True):
    """How many troubles of one kind there were, and the last one."""

    count: int
    last: SaidEntry


class Said(msgspec.Struct, frozen=True):
    """Slice of RunState: the latest, oldest first. Numbers are missing if skipped batches left.

    `starts`: of the daemon. `troubles`: by the name of the event's type, since the run's beginning.
    """

    total: int = 0
    starts: int = 0
    latest: tuple[SaidEntry, ...] = ()
    troubles: dict[str, TroubleKind] = {}


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
        case lr.RateOrdered(actor=actor):
            return actor is not None
        case sd.SeedMoved(stage=stage):
            # The other moves after a cull follow by themselves.
            return stage not in (Stage.EMBARGOED, Stage.RESETTING)
        case gv.StrategyTimedOut(reason=reason):
            # What overtook the question is reported.
            return reason is not gv.NoAnswer.OVERTAKEN
        case gv.StrategyVoted(vote=vote):
            return vote is gv.Vote.REFUSED
        case ck.CheckpointAborted(why=why):
            # The event that ended the trainer is reported.
            return why != ck.TRAINER_ENDED
        case tv.TrainerDied(reason=reason):
            return reason not in _TOLD_TO_END
        case tv.ExecutionContextRecorded(other_data=other, former_steps_per_epoch=former, other_blueprints=changed):
            return bool(other or former or changed)
        case _:
            return type(event) in APPLY and not isinstance(event, run.DaemonStarted)


def _said(s: Said, e: SaidEvent, at: Cause) -> Said:
    if not is_said(e):
        return s
    line = SaidEntry(s.total + 1, s.starts, at.seq, _shortened(e))
    after = replace(s, total=s.total + 1, latest=(*_with_room(s.latest), line))
    if not is_trouble(e):
        return after
    name = type(e).__name__
    known = s.troubles.get(name)
    return replace(after, troubles={**s.troubles, name: TroubleKind(known.count + 1 if known else 1, line)})


def is_trouble(event: SaidEvent) -> bool:
    """Return whether a reported event is counted as a trouble."""
    if isinstance(event, ck.RerunFinished):
        return event.first_difference is not None
    return not isinstance(event, _NO_TROUBLE)


def _shortened(e: SaidEvent) -> SaidEvent:
    """Return the event with the same sentence, without its long parts: output and stacks, units and plans."""
    match e:
        case tv.TrainerDied():
            return replace(e, output=last_line(e.output)[-_OUTPUT_CHARACTERS_MAX:], stacks="")
        case mk.MasksApplied():
            return replace(e, units={}, plan="")
        case mk.ModelCompacted():
            return replace(e, units={}, removal="")
        case _:
            return e


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
