"""Emergencies, conservative mode with the breaker of learning-rate violations, and quarantine: slices, apply tables.

Invariants: the level of an emergency only rises, until a healthy epoch or an operator's order clears it. Only events
switch conservative mode, and both reset its counts. The mode never changes a weight, a rate or the order of data.

Batches enter quarantine after a rollback by the detector (`rollback.skip_batches`). They also do if the trainer died of
one three times (`on_death: skip_batch`); its deaths are then counted from 0. The trainer skips them without a forward
pass, and a re-run does the same. A checkpoint in quarantine is never a target. A seed in quarantine is culled, and its
slot does not germinate again. No name is used twice. The trainer always gets the whole list, so that it cannot differ
from this one. A full quarantine takes no more entries.
"""

from typing import Annotated, ClassVar, Final, Protocol

import msgspec
from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core.calc.bounds import storable
from tolariad.core.calc.health.breaker import Breaker, BreakerRule, BreakerState, failed, succeeded
from tolariad.core.state.budget import BudgetState
from tolariad.core.state.fates import CONFIGURATION, anew, survives
from tolariad.core.state.fold import ApplyTable
from tolariad.core.state.health_detection import Instability

# -- emergencies -------------------------------------------------------------------------------------------------------


class Emergency(msgspec.Struct, frozen=True):
    """Slice of RunState: the present level, and how many were raised. `troubled`: one was raised in the present epoch.

    `why` is from the event that set the level, or from a later one that halted the run, so that it agrees with the
    halt.
    """

    SURVIVES: ClassVar[str] = "the level falls only after a whole healthy epoch, or by an operator's order"

    level: m.Level | None = None
    why: str = ""
    raised: int = 0
    troubled: bool = False


def _raised(s: Emergency, e: m.EmergencyRaised, _: m.Cause) -> Emergency:
    level = m.graver(s.level, e.level)
    says_why = level is not s.level or e.follows is m.Follows.HALT
    return Emergency(level, e.why if says_why else s.why, s.raised + 1, troubled=True)


def _cleared(s: Emergency, _: m.Event, __: m.Cause) -> Emergency:
    return Emergency(None, "", s.raised)


def _begun(s: Emergency, _: m.Event, __: m.Cause) -> Emergency:
    return replace(s, troubled=False) if s.troubled else s


def _ended(s: Emergency, e: m.Event, at: m.Cause) -> Emergency:
    """Clear the level if no emergency was raised since the epoch's start."""
    return s if s.level is None or s.troubled else _cleared(s, e, at)


EMERGENCY: Final[ApplyTable] = {
    m.EmergencyRaised: _raised,
    m.EmergencyCleared: _cleared,
    m.RunResumed: _cleared,
    m.EpochStarted: _begun,
    m.EpochFinished: _ended,
}


# -- conservative mode ------------------------------------------------------------------------------------------------


class BranchStability(msgspec.Struct, frozen=True, omit_defaults=True):
    """What of the stability belongs to a branch: the rate violations of its epoch."""

    in_epoch: int = 0


_THE_CODE_REMAINS: Final = survives("the code that changed rates is still there")
_THE_ANSWER_REMAINS: Final = survives("conservative mode may answer the fault that caused the rollback")


class Stability(BranchStability, frozen=True, omit_defaults=False):
    """Slice of RunState.

    `since`: the monotonic ns at which the mode was entered, or None; `since_wall`: the same in wall time. `breaker`:
    the one of rate violations. `violations`: how many since the mode was last entered or left. `in_epoch`: how many in
    the present epoch. `total`: all. `heeds_budgets`: a slow epoch boundary makes an epoch unhealthy. `troubled`: an
    emergency was raised in the present epoch, so it is unhealthy.
    """

    failures: Annotated[int, CONFIGURATION] = 3
    reset_s: Annotated[float, CONFIGURATION] = 30.0
    probes: Annotated[int, CONFIGURATION] = 1
    breaker: Annotated[Breaker, _THE_CODE_REMAINS] = Breaker()
    violations: Annotated[int, _THE_CODE_REMAINS] = 0
    total: Annotated[int, _THE_CODE_REMAINS] = 0
    since: Annotated[int | None, _THE_ANSWER_REMAINS] = None
    why: Annotated[str, _THE_ANSWER_REMAINS] = ""
    healthy_epochs: Annotated[
        int, anew("the healthy epochs that end conservative mode are counted from the rollback on")
    ] = 0
    heeds_budgets: Annotated[bool, CONFIGURATION] = True
    since_wall: Annotated[int, _THE_ANSWER_REMAINS] = 0
    troubled: Annotated[bool, _THE_ANSWER_REMAINS] = False

    @property
    def rule(self) -> BreakerRule:
        """Return the breaker's rule. Its numbers are unchecked: a capture must hold whatever an event contained."""
        return BreakerRule(failures=self.failures, reset_s=self.reset_s, probes=self.probes)

    @property
    def conservative(self) -> bool:
        """Return whether the mode is on."""
        return self.since is not None

    @property
    def checkpoint_factor(self) -> float:
        """Return the factor on the interval between checkpoints: the mode halves it."""
        return 0.5 if self.conservative else 1.0


def _configured(s: Stability, e: m.RunStarted | m.ConfigChanged, _: m.Cause) -> Stability:
    policy = e.policy
    return replace(
        s,
        failures=policy.lr_failures,
        reset_s=policy.lr_reset_s,
        probes=policy.lr_probes,
        heeds_budgets=policy.budgets_act,
    )


def _violated(s: Stability, e: m.LrViolationDetected, _: m.Cause) -> Stability:
    return replace(
        s,
        breaker=failed(s.breaker, s.rule, e.mono / 1e9),
        violations=s.violations + 1,
        in_epoch=s.in_epoch + 1,
        total=storable(s.total + e.count),
    )


def _breaker_set(s: Stability, e: m.BreakerSet, _: m.Cause) -> Stability:
    if e.breaker != "lr":
        return s
    is_open = e.state is BreakerState.OPEN
    return replace(s, breaker=Breaker(failures=s.failures, opened=e.mono / 1e9) if is_open else Breaker())


def _epoch_finished(s: Stability, e: m.EpochFinished, _: m.Cause) -> Stability:
    if s.in_epoch:
        return replace(s, in_epoch=0, healthy_epochs=0, troubled=False)
    breaker = succeeded(s.breaker, s.rule, e.mono / 1e9)
    return replace(s, breaker=breaker, healthy_epochs=0 if s.troubled else s.healthy_epochs + 1, troubled=False)


def _emergency(s: Stability, _: m.EmergencyRaised, __: m.Cause) -> Stability:
    return replace(s, troubled=True, healthy_epochs=0)


def _epoch_started(s: Stability, _: m.EpochStarted, __: m.Cause) -> Stability:
    """Reset `troubled`: after a rollback an epoch begins again, and counts from its start on."""
    return replace(s, troubled=False) if s.troubled else s


def _entered(s: Stability, e: m.ConservativeModeEntered, _: m.Cause) -> Stability:
    return replace(s, since=e.mono, since_wall=e.wall, why=e.why, violations=0, healthy_epochs=0)


def _exceeded(s: Stability, e: m.BudgetExceeded, _: m.Cause) -> Stability:
    slow = s.heeds_budgets and e.budget == "epoch_boundary"
    return replace(s, healthy_epochs=0) if slow else s


def _left(s: Stability, _: m.ConservativeModeLeft, __: m.Cause) -> Stability:
    return replace(s, since=None, since_wall=0, why="", violations=0)


STABILITY: Final[ApplyTable] = {
    m.RunStarted: _configured,
    m.ConfigChanged: _configured,
    m.LrViolationDetected: _violated,
    m.BreakerSet: _breaker_set,
    m.EpochStarted: _epoch_started,
    m.EpochFinished: _epoch_finished,
    m.EmergencyRaised: _emergency,
    m.BudgetExceeded: _exceeded,
    m.ConservativeModeEntered: _entered,
    m.ConservativeModeLeft: _left,
}


# -- quarantine --------------------------------------------------------------------------------------------------------

ENTRIES_MAX: Final = 256
# After this many deaths in a row at one step, the batch is the cause.
DEATHS_OF_A_BATCH: Final = 3
# This many batches in a row, without a step between them, may enter for the trainer's deaths. For the next one the
# trainer itself is suspected, and the limit on its deaths counts on.
CURED_MAX: Final = 3


class QuarantineEntry(msgspec.Struct, frozen=True):
    """One entry. `since`: the number of its event. `until`: the epoch whose end removes it."""

    name: str
    why: str
    since: int
    batches: m.Batches | None = None
    checkpoint: str = ""
    until: int | None = None
    seed: str = ""
    root: int = 0


class Quarantine(msgspec.Struct, frozen=True):
    """Slice of RunState: at most ENTRIES_MAX entries, oldest first."""

    SURVIVES: ClassVar[str] = "a batch that did harm is not used again, on any branch"

    added: int = 0
    entries: tuple[QuarantineEntry, ...] = ()

    @property
    def batches(self) -> tuple[m.Batches, ...]:
        """Return the batches that the trainer skips."""
        return tuple(one.batches for one in self.entries if one.batches is not None)

    @property
    def next_name(self) -> str:
        """Return the name of the next entry."""
        return f"q{self.added + 1:04d}"

    def name_after(self, entries: int) -> str:
        """Return the name of the next entry after so many more."""
        return f"q{self.added + 1 + entries:04d}"

    def takes(self, entry: m.QuarantineAdded) -> bool:
        """Return whether this entry is not there yet, and there is room for it."""
        return self.of(entry.batches, entry.checkpoint, entry.seed) is None and len(self.entries) < ENTRIES_MAX

    def of(self, batches: m.Batches | None, checkpoint: str, seed: str) -> QuarantineEntry | None:
        """Return the entry of exactly these batches, or of this checkpoint or seed, or None."""
        wanted = batches, checkpoint, seed
        return next((one for one in self.entries if (one.batches, one.checkpoint, one.seed) == wanted), None)

    def of_seed(self, slot: str) -> QuarantineEntry | None:
        """Return the entry of the seed in this slot, or None."""
        return next((one for one in self.entries if one.seed == slot), None) if self.entries else None


def _added(s: Quarantine, e: m.QuarantineAdded, at: m.Cause) -> Quarantine:
    entry = QuarantineEntry(e.name, e.why, at.seq, e.batches, e.checkpoint, e.until, e.seed, at.root)
    return Quarantine(s.added + 1, (*s.entries, entry)[:ENTRIES_MAX])


def _removed(s: Quarantine, e: m.QuarantineRemoved, _: m.Cause) -> Quarantine:
    return replace(s, entries=tuple(one for one in s.entries if one.name != e.name))


QUARANTINE: Final[ApplyTable] = {m.QuarantineAdded: _added, m.QuarantineRemoved: _removed}


class HasHealth(Protocol):
    """A state with the slices of health."""

    @property
    def emergency(self) -> Emergency:
        """Return the present level."""

    @property
    def stability(self) -> Stability:
        """Return conservative mode and its breaker."""

    @property
    def quarantine(self) -> Quarantine:
        """Return the quarantine."""

    @property
    def instability(self) -> Instability:
        """Return the findings."""

    @property
    def overruns(self) -> BudgetState:
        """Return the limits of the budgets, and what overruns led to."""
