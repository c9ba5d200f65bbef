"""Rollbacks: slice, apply table.

A rollback is PREPARE (every participant reports whether it can go back), COMMIT (they go back), CONFIRM (what they hold
is compared). All must agree, and the intent is durable before COMMIT. If a trainer or daemon dies during a rollback,
the next start completes it by beginning at the target. If the fast tier fails, the full tier goes on under the same id,
from the newest checkpoint that is no newer. Each rollback opens a branch. Steps of other branches stay in the journal,
but are never a target and never run again.

Invariants: at most one rollback is open, and it ends exactly once. Branch numbers only rise. A checkpoint after the
fork, on the branch that was left, stays abandoned.
"""

from typing import Annotated, Final, Protocol

import msgspec
from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core.calc.copying import Copying
from tolariad.core.calc.steps.branches import Branches, Fork
from tolariad.core.state.fates import COUNTER, set_back, survives
from tolariad.core.state.fold import ApplyTable

_PLACES_KEPT: Final = 64


class OpenRollback(Copying, frozen=True):
    """A rollback that has not ended.

    After an escalation, `tier`, `checkpoint` and `to_step` are those of the full tier. `target_mono`: when this target
    was chosen. `is_prepared`: the trainer can go back to it.
    """

    id: str
    checkpoint: str
    tier: m.Tier
    cause: m.Cause
    to_step: int = 0
    prepare_s: float = 0.0
    heard_mono: int = 0
    rate_factor: float = 1.0
    otherwise: m.RefusalPolicy = m.RefusalPolicy.STAY
    from_step: int = 0
    why: str = ""
    target_mono: int = 0
    is_prepared: bool = False


class WaitingRollback(msgspec.Struct, frozen=True):
    """A rollback that waits for the end of a re-run."""

    checkpoint: str
    tier: m.Tier
    why: str
    cause: m.Cause
    step: int = 0
    otherwise: m.RefusalPolicy = m.RefusalPolicy.STAY


_HISTORY: Final = set_back("the history of rollbacks: it keeps the run from going back to one place without end")


class Rollbacks(msgspec.Struct, frozen=True):
    """Slice of RunState. `target`: the last target.

    `places`: how often the run went back to each step, the latest last. `rate_factor`: the factor that all rates are
    still to be multiplied by.
    """

    begun: Annotated[int, COUNTER] = 0
    done: Annotated[int, _HISTORY] = 0
    open: Annotated[OpenRollback | None, _HISTORY] = None
    asked: Annotated[WaitingRollback | None, survives("an order that waits")] = None
    target: Annotated[str, _HISTORY] = ""
    branches: Annotated[Branches, _HISTORY] = Branches()
    rate_factor: Annotated[float, _HISTORY] = 1.0
    places: Annotated[tuple[tuple[int, int], ...], _HISTORY] = ()

    @property
    def wanted(self) -> frozenset[str]:
        """Return the targets of the open and the waiting rollback: they must not be removed, whatever their age."""
        return frozenset(one.checkpoint for one in (self.open, self.asked) if one is not None)

    @property
    def next_id(self) -> str:
        """Return the name of the next rollback. No name is used twice."""
        return f"r{self.begun + 1:04d}"


class HasRollbacks(Protocol):
    """A state with this slice."""

    @property
    def rollbacks(self) -> Rollbacks:
        """Return the rollbacks."""


def _requested(s: Rollbacks, e: m.RollbackRequested, at: m.Cause) -> Rollbacks:
    return replace(
        s, asked=WaitingRollback(e.checkpoint, e.tier, e.actor.reason if e.actor else "", at, e.step, e.otherwise)
    )


def _begun(s: Rollbacks, e: m.RollbackBegun, at: m.Cause) -> Rollbacks:
    return replace(
        s,
        begun=s.begun + 1,
        asked=None,
        open=OpenRollback.of(e, id=e.rollback, cause=at, target_mono=e.mono),
    )


def _heard(s: Rollbacks, e: m.RollbackHeard, _: m.Cause) -> Rollbacks:
    return s if s.open is None else replace(s, open=replace(s.open, heard_mono=e.mono))


def _prepared(s: Rollbacks, e: m.RollbackPrepared, _: m.Cause) -> Rollbacks:
    return (
        s
        if s.open is None
        else replace(s, open=replace(s.open, prepare_s=s.open.prepare_s + e.seconds, is_prepared=True))
    )


def _escalated(s: Rollbacks, e: m.RollbackEscalated, _: m.Cause) -> Rollbacks:
    if s.open is None:
        return s
    target = {"checkpoint": e.checkpoint, "tier": m.Tier.FULL, "to_step": e.to_step}
    return replace(s, open=replace(s.open, **target, target_mono=e.mono, is_prepared=False))


def _rolled_back(s: Rollbacks, e: m.RolledBack, at: m.Cause) -> Rollbacks:
    fork = Fork(e.branch, e.parent, e.step, e.epoch, e.batch, at.seq)
    factor = s.open.rate_factor if s.open else 1.0
    return replace(
        s,
        done=s.done + 1,
        open=None,
        target=e.checkpoint,
        places=_with_one_more(s.places, e.step),
        branches=s.branches.forked(fork),
        rate_factor=factor,
    )


def _with_one_more(counts: tuple[tuple[int, int], ...], step: int) -> tuple[tuple[int, int], ...]:
    """Return the counts with one more for `step`, which becomes the latest. If there are too many, drop the oldest."""
    known = dict(counts)
    count = known.pop(step, 0) + 1
    return (*known.items(), (step, count))[-_PLACES_KEPT:]


def _backed_off(s: Rollbacks, _: m.RatesBackedOff, __: m.Cause) -> Rollbacks:
    return replace(s, rate_factor=1.0)


def _aborted(s: Rollbacks, _: m.RollbackAborted, __: m.Cause) -> Rollbacks:
    return replace(s, open=None)


APPLY: Final[ApplyTable] = {
    m.RollbackRequested: _requested,
    m.RollbackBegun: _begun,
    m.RollbackHeard: _heard,
    m.RollbackPrepared: _prepared,
    m.RollbackEscalated: _escalated,
    m.RolledBack: _rolled_back,
    m.RollbackAborted: _aborted,
    m.RatesBackedOff: _backed_off,
}
