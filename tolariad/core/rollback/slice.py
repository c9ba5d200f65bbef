"""Rollbacks: slice, apply table.

A rollback is PREPARE (every participant says whether it can), COMMIT (they go back), CONFIRM (what they hold was compared).
All must agree; the intent is durable before COMMIT. A trainer or a daemon that dies amid a rollback finishes it by its next
start, which begins at the target: that is as far as anybody can go back. What the fast tier cannot do, the full one does
under the same id, from the newest checkpoint that is no newer. Each rollback opens a branch, and steps that are
not on the living line are never a target and never run again, but stay in the journal.

Invariants: at most one rollback is open; it has exactly one end; the branch's number only grows; a checkpoint behind the
fork, on the branch that was left, is abandoned for ever. It must not know: tensors, files, what the participants are.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from tolariad.core.base import ApplyTable, Cause
from tolariad.core.rollback import words as rb
from tolariad.core.steps.branches import Fork, Lines

_PLACES_KEPT: Final = 64


class Open(msgspec.Struct, frozen=True):
    """A rollback that has no end yet. `tier`, `checkpoint` and `to_step` are those of the full tier once it has escalated."""

    id: str
    checkpoint: str
    tier: rb.Tier
    cause: Cause
    to_step: int = 0
    prepare_s: float = 0.0
    heard_mono: int = 0
    rate_factor: float = 1.0
    otherwise: rb.Otherwise = rb.Otherwise.STAY
    from_step: int = 0
    why: str = ""


class Asked(msgspec.Struct, frozen=True):
    """One that waits for the end of a re-run."""

    checkpoint: str
    tier: rb.Tier
    why: str
    cause: Cause
    step: int = 0
    otherwise: rb.Otherwise = rb.Otherwise.STAY


class Rollbacks(msgspec.Struct, frozen=True):
    """Slice of RunState. `target`: what was gone back to last; `places`: how often each step was, the latest last.
    `rate_factor`: what rates are still to be multiplied by.
    """

    begun: int = 0
    done: int = 0
    open: Open | None = None
    asked: Asked | None = None
    target: str = ""
    lines: Lines = Lines()
    rate_factor: float = 1.0
    places: tuple[tuple[int, int], ...] = ()

    @property
    def wanted(self) -> frozenset[str]:
        """What one is on its way to, or waits to go to: it stays until then, whatever its age."""
        return frozenset(one.checkpoint for one in (self.open, self.asked) if one is not None)

    @property
    def next_id(self) -> str:
        """The name of the next rollback; never used twice."""
        return f"r{self.begun + 1:04d}"


class HasRollbacks(Protocol):
    """A state with this slice."""

    @property
    def rollbacks(self) -> Rollbacks:
        """Return the rollbacks."""


def _requested(s: Rollbacks, e: rb.RollbackRequested, at: Cause) -> Rollbacks:
    return replace(s, asked=Asked(e.checkpoint, e.tier, e.actor.reason if e.actor else "", at, e.step, e.otherwise))


def _begun(s: Rollbacks, e: rb.RollbackBegun, at: Cause) -> Rollbacks:
    return replace(
        s,
        begun=s.begun + 1,
        asked=None,
        open=Open(
            e.rollback, e.checkpoint, e.tier, at, e.to_step, 0.0, 0, e.rate_factor, e.otherwise, e.from_step, e.why
        ),
    )


def _heard(s: Rollbacks, e: rb.RollbackHeard, _: Cause) -> Rollbacks:
    return s if s.open is None else replace(s, open=replace(s.open, heard_mono=e.mono))


def _prepared(s: Rollbacks, e: rb.RollbackPrepared, _: Cause) -> Rollbacks:
    return s if s.open is None else replace(s, open=replace(s.open, prepare_s=s.open.prepare_s + e.seconds))


def _escalated(s: Rollbacks, e: rb.RollbackEscalated, _: Cause) -> Rollbacks:
    if s.open is None:
        return s
    return replace(s, open=replace(s.open, checkpoint=e.checkpoint, tier=rb.Tier.FULL, to_step=e.to_step))


def _rolled_back(s: Rollbacks, e: rb.RolledBack, at: Cause) -> Rollbacks:
    fork = Fork(e.branch, e.parent, e.step, e.epoch, e.batch, at.seq)
    factor = s.open.rate_factor if s.open else 1.0
    return replace(
        s,
        done=s.done + 1,
        open=None,
        target=e.checkpoint,
        places=_with_one_more(s.places, e.step),
        lines=s.lines.forked(fork),
        rate_factor=factor,
    )


def _with_one_more(counts: tuple[tuple[int, int], ...], step: int) -> tuple[tuple[int, int], ...]:
    """The counts with one more for `step`, the latest last; the oldest of too many are forgotten."""
    known = dict(counts)
    count = known.pop(step, 0) + 1
    return (*known.items(), (step, count))[-_PLACES_KEPT:]


def _backed_off(s: Rollbacks, _: rb.RatesBackedOff, __: Cause) -> Rollbacks:
    return replace(s, rate_factor=1.0)


def _aborted(s: Rollbacks, _: rb.RollbackAborted, __: Cause) -> Rollbacks:
    return replace(s, open=None)


APPLY: Final[ApplyTable] = {
    rb.RollbackRequested: _requested,
    rb.RollbackBegun: _begun,
    rb.RollbackHeard: _heard,
    rb.RollbackPrepared: _prepared,
    rb.RollbackEscalated: _escalated,
    rb.RolledBack: _rolled_back,
    rb.RollbackAborted: _aborted,
    rb.RatesBackedOff: _backed_off,
}
