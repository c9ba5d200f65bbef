"""The autopilot's memory: what it watches, the states that are pinned, the comparison that is open.

The slice holds the machine of `core.calc.detection.autopilot`, and gives it findings, losses and comparisons as the
journal has them. Rules ask the same functions what follows.

Invariants: a rollback restores nothing of it. At most two pins are held. At most one comparison is open, and it ends
exactly once.
"""

from typing import Annotated, Final, Protocol

import msgspec
from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core.calc.bounds import storable
from tolariad.core.calc.detection import autopilot as ap
from tolariad.core.calc.detection.comparison import Comparison
from tolariad.core.calc.detection.loud import Loud
from tolariad.core.calc.detection.place import Batch, earlier
from tolariad.core.calc.detection.rules import Finding, Verdict
from tolariad.core.state.fates import CONFIGURATION, anew, survives
from tolariad.core.state.fold import ApplyTable
from tolariad.core.state.stages import announced

PINS_MAX: Final = 2
_MEMORY: Final = survives("the autopilot's memory: with that of the target it would do the same again, without end")
# The steps that are skipped for their own numbers: their losses are part of a rise.
JUDGED: Final = frozenset({m.SkipReason.SPIKE, m.SkipReason.NON_FINITE})


class Pin(msgspec.Struct, frozen=True):
    """A checkpoint that is kept as a way back. `is_held_on_to`: an operator or the end of the run decides about it."""

    checkpoint: str
    step: int
    role: m.PinRole
    why: str
    cause: m.Cause
    is_written: bool = True
    is_held_on_to: bool = False


class OpenComparison(msgspec.Struct, frozen=True):
    """A comparison that the trainer is to make after this batch."""

    checkpoint: str
    at: Batch
    role: m.PinRole
    cause: m.Cause


class Insurance(msgspec.Struct, frozen=True):
    """Slice of RunState. `is_on`: findings of finite values are insured. `policy`: what the machine reads.

    `loud`: what the detector knew of loud batches before the rollback that is under way.
    """

    machine: Annotated[ap.Autopilot, _MEMORY] = ap.Autopilot()
    pins: Annotated[tuple[Pin, ...], _MEMORY] = ()
    comparing: Annotated[OpenComparison | None, _MEMORY] = None
    is_on: Annotated[bool, CONFIGURATION] = True
    policy: Annotated[ap.Policy, CONFIGURATION] = ap.Policy()
    loud: Annotated[Loud, anew("the rule of the rollback has read it")] = Loud()

    def pin(self, role: m.PinRole) -> Pin | None:
        """Return the newest pin of this role that the autopilot may use, or None."""
        return next((one for one in reversed(self.pins) if one.role is role and not one.is_held_on_to), None)

    def find(self, checkpoint: str) -> Pin | None:
        """Return the pin of this checkpoint, or None."""
        return next((one for one in self.pins if one.checkpoint == checkpoint), None)

    @property
    def held_on_to(self) -> Pin | None:
        """Return the newest pin that waits for an operator, or None."""
        return next((one for one in reversed(self.pins) if one.is_held_on_to), None)


class HasInsurance(Protocol):
    """A state with this slice."""

    @property
    def insurance(self) -> Insurance:
        """Return the autopilot's memory."""


def verdict_of(e: m.InstabilityDetected) -> Verdict:
    """Return the verdict that the event records."""
    return Verdict(e.finding, e.signal, e.value, e.baseline, e.limit, e.run_of, e.explosion)


def found_at(s: Insurance, e: m.InstabilityDetected) -> ap.Found:
    """Return where the finding was made."""
    began = e.began or (e.run_of if e.finding in (Finding.SPIKE, Finding.NON_FINITE, Finding.EXPLOSION) else 0)
    # The first batch of the last update before the rise.
    back = (began + 1) * s.policy.step_batches - 1
    at = e.epoch, e.batch
    first = earlier(at, back, s.policy.epoch_batches)
    return ap.Found(step=e.step, batch=at, first=first, began=began, unit=e.unit)


# -- folds -------------------------------------------------------------------------------------------------------------


def _configured(s: Insurance, e: m.RunStarted | m.ConfigChanged, _: m.Cause) -> Insurance:
    given = e.policy
    policy = replace(
        s.policy, trial=given.detect_trial, halts=given.detect_halt, step_batches=max(1, storable(given.accumulate))
    )
    return replace(s, is_on=given.detect_rollback, policy=policy)


def _built(s: Insurance, e: m.ExecutionContextRecorded, _: m.Cause) -> Insurance:
    batches = storable(max(0, e.steps_per_epoch) * s.policy.step_batches)
    return replace(s, policy=replace(s.policy, epoch_batches=batches))


def _detected(s: Insurance, e: m.InstabilityDetected, _: m.Cause) -> Insurance:
    if not e.insured:
        return s
    machine, acts = ap.found(s.machine, verdict_of(e), found_at(s, e), s.policy)
    keeps = any(isinstance(one, ap.GoBack) and one.keeps_loud for one in acts)
    return replace(s, machine=machine, loud=e.loud if keeps else s.loud)


def _stepped(s: Insurance, e: m.StepCompleted | m.StepSkipped, _: m.Cause) -> Insurance:
    if s.machine.is_idle:
        return s
    return replace(s, machine=ap.stepped(s.machine, (e.epoch, e.batch), e.loss)[0])


def _skipped(s: Insurance, e: m.StepSkipped, at: m.Cause) -> Insurance:
    return _stepped(s, e, at) if e.reason in JUDGED else s


def _pinned(s: Insurance, e: m.StatePinned, at: m.Cause) -> Insurance:
    pin = Pin(e.checkpoint, e.step, e.role, e.why, at, e.is_written)
    # Another one of the same role takes the place of one that could not be written.
    pins = (*(one for one in s.pins if one.role is not e.role or one.is_held_on_to), pin)
    return replace(s, pins=pins[-PINS_MAX:])


def _released(s: Insurance, e: m.PinReleased, _: m.Cause) -> Insurance:
    found, pins = s.find(e.checkpoint), tuple(one for one in s.pins if one.checkpoint != e.checkpoint)
    is_lost = e.is_lost and found is not None and not found.is_held_on_to
    return replace(s, pins=pins, machine=ap.pin_lost(s.machine) if is_lost else s.machine)


def _committed(s: Insurance, e: m.CheckpointCommitted, _: m.Cause) -> Insurance:
    pin = s.find(e.id)
    if pin is None or pin.is_written:
        return s
    pins = tuple(replace(one, is_written=True, step=e.step) if one is pin else one for one in s.pins)
    machine = s.machine
    if pin.role is m.PinRole.WENT_ON:
        machine = ap.kept(machine, (e.epoch, e.batch), s.policy)[0]
    return replace(s, pins=pins, machine=machine)


def _not_written(s: Insurance, e: m.CheckpointAborted, _: m.Cause) -> Insurance:
    pin = s.find(e.id)
    if pin is None or pin.is_written:
        return s
    is_refused = pin.role is m.PinRole.WENT_ON and e.why not in m.WITH_TRAINER
    machine = ap.not_kept(s.machine)[0] if is_refused else s.machine
    return replace(s, pins=tuple(one for one in s.pins if one is not pin), machine=machine)


def _unusable(s: Insurance, e: m.CheckpointRejected, _: m.Cause) -> Insurance:
    return replace(s, pins=tuple(one for one in s.pins if one.checkpoint != e.id)) if s.find(e.id) else s


def _comparing(s: Insurance, e: m.ComparisonBegun, at: m.Cause) -> Insurance:
    return replace(s, comparing=OpenComparison(e.checkpoint, (e.epoch, e.batch), e.role, at))


def comparison_of(e: m.StatesCompared) -> Comparison:
    """Return what was measured."""
    return Comparison(e.newest, e.held, e.begin, e.usual)


def _compared(s: Insurance, e: m.StatesCompared, _: m.Cause) -> Insurance:
    if s.machine.trial is not None:
        held = None if e.held is None else e.held.now
        return replace(s, comparing=None, machine=ap.branches_compared(s.machine, held)[0])
    machine, acts = ap.compared(s.machine, comparison_of(e), (e.epoch, e.batch), s.policy)
    return replace(s, comparing=None, machine=machine, loud=e.loud if ap.TryBoth() in acts else s.loud)


def _held_on_to(s: Insurance, e: m.HeldOnTo, _: m.Cause) -> Insurance:
    pins = tuple(replace(one, is_held_on_to=True) if one.checkpoint == e.checkpoint else one for one in s.pins)
    return replace(s, pins=pins, machine=ap.pin_lost(s.machine))


def _forgotten(s: Insurance, e: m.RollbackRequested | m.EmergencyRaised, _: m.Cause) -> Insurance:
    """Forget the place when an operator goes back: the run's earlier attempts tell nothing about later findings."""
    return s if e.actor is None else replace(s, machine=ap.Autopilot())


def _frozen(s: Insurance, _: m.RunFrozen, __: m.Cause) -> Insurance:
    """Once an operator resumes the run, it goes on past this place, whatever finite values it meets."""
    return s if s.machine.place is None else replace(s, machine=replace(s.machine, given_up=True))


def _rolled_back(s: Insurance, _: m.RolledBack, __: m.Cause) -> Insurance:
    """End a watch: its rise belongs to the branch that is left. A trial goes on."""
    machine = s.machine
    if machine.watch is not None:
        machine = ap.pin_lost(machine)
    return replace(s, machine=machine, loud=Loud())


def _acted(s: Insurance, e: m.OrderActed, _: m.Cause) -> Insurance:
    is_free = announced(e) and not s.machine.given_up
    return replace(s, machine=ap.settled(s.machine, begins_anew=True)) if is_free else s


APPLY: Final[ApplyTable] = {
    m.RunStarted: _configured,
    m.ConfigChanged: _configured,
    m.ExecutionContextRecorded: _built,
    m.InstabilityDetected: _detected,
    m.StepCompleted: _stepped,
    m.StepSkipped: _skipped,
    m.StatePinned: _pinned,
    m.PinReleased: _released,
    m.CheckpointCommitted: _committed,
    m.CheckpointAborted: _not_written,
    m.CheckpointRejected: _unusable,
    m.ComparisonBegun: _comparing,
    m.ComparisonAborted: lambda s, _, __: replace(s, comparing=None),
    m.StatesCompared: _compared,
    m.HeldOnTo: _held_on_to,
    m.RollbackRequested: _forgotten,
    m.EmergencyRaised: _forgotten,
    m.RunFrozen: _frozen,
    m.RolledBack: _rolled_back,
    m.OrderActed: _acted,
}
