"""The events that are reported at once to the people who watch a run: slice, apply table, and list.

The console and `tolaria status` show them as the sentences of `core.messages.sentences.text`. The slice holds the
events and not their sentences, so that a change of wording does not change the state.

Invariants: at most LATEST_MAX are kept, and the last of each kind of trouble with their number; the journal has the
others. If there is no room, a skipped batch leaves first: a hundred of them must not hide a rollback.
"""

from typing import Annotated, Final, TypeAlias, get_args

import msgspec
from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core.calc.detection.rules import Finding
from tolariad.core.calc.seeds.stages import Stage
from tolariad.core.calc.text.phrases import last_line
from tolariad.core.state.fates import COUNTER, set_back
from tolariad.core.state.fold import ApplyTable

LATEST_MAX: Final = 16
# For the first two a StepSkipped is reported if a batch was skipped. The duration of a step concerns the machine only.
_SAID_OTHERWISE: Final = frozenset({Finding.NON_FINITE, Finding.SPIKE, Finding.STALL})

SaidEvent: TypeAlias = (
    m.StepSkipped
    | m.RolledBack
    | m.RollbackEscalated
    | m.RollbackAborted
    | m.RatesBackedOff
    | m.RatesRestored
    | m.LrViolationDetected
    | m.ConservativeModeEntered
    | m.ConservativeModeLeft
    | m.RunFrozen
    | m.InstabilityDetected
    | m.QuarantineAdded
    | m.DiskLow
    | m.DiskRecovered
    | m.TrainerDied
    | m.ExecutionContextRecorded
    | m.InexactDataFound
    | m.DataNoted
    | m.CheckpointAborted
    | m.CheckpointRejected
    | m.CheckpointUnfit
    | m.StorageExhausted
    | m.RerunFinished
    | m.RerunDiverged
    | m.OrderGiven
    | m.OrderActed
    | m.OrderAborted
    | m.StopRequested
    | m.ReportRefused
    | m.StrategyTimedOut
    | m.StrategyVoted
    | m.BreakerSet
    | m.PruneCycleFailed
    | m.PruneBreakerOpened
    | m.MaskSetPassed
    | m.MaskSetRejected
    | m.StatePinned
    | m.StatesCompared
    | m.PinReleased
    | m.HeldOnTo
)
# Reported, but no trouble: orders, and the ends of troubles.
_NO_TROUBLE: Final = (
    m.RatesBackedOff,
    m.RatesRestored,
    m.ConservativeModeLeft,
    m.QuarantineAdded,
    m.DiskRecovered,
    m.OrderGiven,
    m.OrderActed,
    m.StopRequested,
    m.BreakerSet,
    m.MaskSetPassed,
    m.DataNoted,
    m.StatePinned,
    m.StatesCompared,
    m.PinReleased,
)
# Ends that an order or the daemon caused.
_TOLD_TO_END: Final = (m.DeathReason.WITH_DAEMON, m.DeathReason.KILLED)
_OUTPUT_CHARACTERS_MAX: Final = 500


# The orders that are reported when they act, and when they do not. Of others it is enough that they were given.
_SAID_ORDERS: Final = (m.MoveSeed, m.MaskUnits, m.ReleaseMasks, m.CompactModel, m.LearnAnew, m.BeginStage)


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


_ADDED: Final = set_back("the rollback itself is added; earlier entries stay")


class Said(msgspec.Struct, frozen=True):
    """Slice of RunState: the latest, oldest first. Numbers are missing if skipped batches left.

    `starts`: how often the daemon was started. `troubles`: those of each event type since the run began.
    """

    total: Annotated[int, _ADDED] = 0
    starts: Annotated[int, COUNTER] = 0
    latest: Annotated[tuple[SaidEntry, ...], _ADDED] = ()
    troubles: Annotated[dict[str, TroubleKind], _ADDED] = {}


def is_said(event: m.Event) -> bool:
    """Return whether the run reports this event at once."""
    match event:
        case m.StepSkipped(reason=reason):
            # With fp16 an overflow is part of every healthy run. A batch in quarantine was reported when it was put
            # there.
            return reason not in (m.SkipReason.OVERFLOW, m.SkipReason.QUARANTINED)
        case m.InstabilityDetected(finding=finding, level=level):
            # A finding with a level leads to a rollback or a halt, which gives it as the reason.
            return level is None and finding not in _SAID_OTHERWISE
        case m.QuarantineAdded(actor=actor):
            return actor is None
        case m.OrderGiven(order=order, actor=actor):
            return isinstance(order, m.SetHyperparameters) or (isinstance(order, m.SetRate) and actor is not None)
        case m.OrderActed(order=m.MoveSeed(stage=stage)):
            # The other moves after a cull follow by themselves.
            return stage not in (Stage.EMBARGOED, Stage.RESETTING)
        case m.OrderActed(order=order) | m.OrderAborted(order=order):
            return isinstance(order, _SAID_ORDERS)
        case m.StrategyTimedOut(reason=reason):
            # What overtook the question is reported.
            return reason is not m.NoAnswer.OVERTAKEN
        case m.StrategyVoted(vote=vote):
            return vote is m.Vote.REFUSED
        case m.CheckpointAborted(why=why):
            # The event that ended the trainer is reported.
            return why != m.TRAINER_ENDED
        case m.TrainerDied(reason=reason):
            return reason not in _TOLD_TO_END
        case m.ExecutionContextRecorded():
            return bool(event.other_data or event.former_steps_per_epoch or event.other_blueprints or event.other_code)
        case m.RatesRestored(undone=undone):
            # The rollback is reported. Only an order that does not act any more is news.
            return bool(undone)
        case _:
            return type(event) in APPLY and not isinstance(event, m.DaemonStarted)


def _said(s: Said, e: SaidEvent, at: m.Cause) -> Said:
    if not is_said(e):
        return s
    line = SaidEntry(s.total + 1, s.starts, at.seq, _shortened(e))
    after = replace(s, total=s.total + 1, latest=(*_with_room(s.latest), line))
    if not is_trouble(e):
        return after
    name = event_name(e)
    known = s.troubles.get(name)
    return replace(after, troubles={**s.troubles, name: TroubleKind(known.count + 1 if known else 1, line)})


def event_name(event: m.Event) -> str:
    """Return the name of the event's type, with that of its order if it has one: `OrderAborted:MaskUnits`."""
    order = getattr(event, "order", None)
    kind = type(event).__name__
    return f"{kind}:{type(order).__name__}" if isinstance(order, m.BoundaryOrder) else kind


def is_trouble(event: SaidEvent) -> bool:
    """Return whether a reported event is counted as a trouble."""
    if isinstance(event, m.RerunFinished):
        return event.first_difference is not None
    if isinstance(event, m.OrderAborted):
        return not isinstance(event.order, m.MoveSeed)
    return not isinstance(event, _NO_TROUBLE)


def _shortened(e: SaidEvent) -> SaidEvent:
    """Return the event with the same sentence, without its long parts: output and stacks, units and plans."""
    match e:
        case m.TrainerDied():
            return replace(e, output=last_line(e.output)[-_OUTPUT_CHARACTERS_MAX:], stacks="")
        case m.OrderGiven() | m.OrderActed() | m.OrderAborted():
            return replace(e, order=e.order.brief)
        case _:
            return e


def _with_room(latest: tuple[SaidEntry, ...]) -> tuple[SaidEntry, ...]:
    """Drop the oldest skipped batch, or the oldest of all, if there is no room for one more."""
    if len(latest) < LATEST_MAX:
        return latest
    least = next((n for n, one in enumerate(latest) if isinstance(one.event, m.StepSkipped)), 0)
    return (*latest[:least], *latest[least + 1 :])


def _started(s: Said, _: m.DaemonStarted, __: m.Cause) -> Said:
    return replace(s, starts=s.starts + 1)


APPLY: Final[ApplyTable] = {
    **dict.fromkeys(get_args(SaidEvent), _said),
    m.DaemonStarted: _started,
}
