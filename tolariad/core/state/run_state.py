"""RunState: the slices of all concerns, and the fold that computes it from events.

Promises: `apply` is total and pure: it takes every event in every state and never raises. Folding in pieces gives the
same result as folding at once. Equal states have equal canonical bytes on every machine. State is only stored as a
capture of this fold.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final

import msgspec
from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core.calc.steps.many import ManySteps
from tolariad.core.messages.vocabulary import Unknown
from tolariad.core.state import (
    architecture,
    boundary,
    branch,
    checkpoints,
    control,
    health,
    insurance,
    pruning,
    rates,
    rollback,
    run,
    said,
    seeds,
    snapshots,
    stages,
    steps,
    steps_many,
    strategy,
    trainer,
)
from tolariad.core.state import budget as budgets
from tolariad.core.state import health_detection as detection
from tolariad.core.state import run_limit as limits
from tolariad.core.state.fates import survives
from tolariad.core.state.fold import ApplyTable, Fold
from tolariad.core.state.run import DISK, Disk

# Raise it if an existing event changes its meaning for `apply`, and once for a release in which RunState changed its
# fields. Captures and hashes carry it. A capture of another version is not used: the events are folded again.
FOLD_VERSION: Final = 10


class RunState(msgspec.Struct, frozen=True):
    """Everything known of a run after its first `seq` events."""

    seq: Annotated[int, survives("nothing is ever removed from the journal")] = 0
    run: run.Run = run.Run()
    progress: steps.Progress = steps.Progress()
    checkpoints: checkpoints.Checkpoints = checkpoints.Checkpoints()
    trainer: trainer.Trainer = trainer.Trainer()
    control: control.Control = control.Control()
    limits: limits.RunLimits = limits.RunLimits()
    rates: rates.Rates = rates.Rates()
    boundary: boundary.Boundary = boundary.Boundary()
    stability: health.Stability = health.Stability()
    rollbacks: rollback.Rollbacks = rollback.Rollbacks()
    emergency: health.Emergency = health.Emergency()
    instability: detection.Instability = detection.Instability()
    quarantine: health.Quarantine = health.Quarantine()
    disk: Disk = Disk()
    overruns: budgets.BudgetState = budgets.BudgetState()
    snapshots: snapshots.Snapshots = snapshots.Snapshots()
    copies: branch.Copies = branch.Copies()
    said: said.Said = said.Said()
    architecture: architecture.Architecture = architecture.Architecture()
    seeds: seeds.Seeds = seeds.Seeds()
    strategy: strategy.Strategy = strategy.Strategy()
    pruning: pruning.Pruning = pruning.Pruning()
    stages: stages.Stages = stages.Stages()
    insurance: insurance.Insurance = insurance.Insurance()


# Each slice's name in RunState, and its apply table.
_TABLES: Final[dict[str, ApplyTable]] = {
    "run": run.APPLY,
    "progress": steps.APPLY,
    "checkpoints": checkpoints.APPLY,
    "trainer": trainer.APPLY,
    "control": control.APPLY,
    "limits": limits.APPLY,
    "rates": rates.APPLY,
    "boundary": boundary.APPLY,
    "stability": health.STABILITY,
    "rollbacks": rollback.APPLY,
    "emergency": health.EMERGENCY,
    "instability": detection.APPLY,
    "quarantine": health.QUARANTINE,
    "disk": DISK,
    "overruns": budgets.OVERRUNS,
    "snapshots": snapshots.APPLY,
    "said": said.APPLY,
    "architecture": architecture.APPLY,
    "seeds": seeds.APPLY,
    "strategy": strategy.APPLY,
    "pruning": pruning.APPLY,
    "stages": stages.APPLY,
    "insurance": insurance.APPLY,
}


def _by_event() -> dict[type[m.Event], tuple[tuple[str, Fold], ...]]:
    turned: dict[type[m.Event], tuple[tuple[str, Fold], ...]] = {}
    for name, table in _TABLES.items():
        for kind, function in table.items():
            turned[kind] = (*turned.get(kind, ()), (name, function))
    return turned


# By event type, the slices that it changes, and how: applying an event visits no other slice.
FOLDS: Final = _by_event()


def apply(state: RunState, event: m.Event | Unknown) -> RunState:
    """Return the state after one more event. An unknown or skippable one only takes its sequence number."""
    seq = state.seq + 1
    if isinstance(event, Unknown) or event.skippable:
        return replace(state, seq=seq)
    at = m.Cause(seq, event.root or seq)
    changed = {name: function(getattr(state, name), event, at) for name, function in FOLDS.get(type(event), ())}
    phase = run.phase_after(state.run.phase, type(event))
    if phase is not state.run.phase:
        changed["run"] = replace(changed.get("run", state.run), phase=phase)
    after = replace(state, seq=seq, **changed)
    # The changes that need several slices: saving a Branch, and putting it back.
    whole = branch.CHANGES_OF_SEVERAL.get(type(event))
    if whole is None or not (also := whole(state, after, event)):
        return after
    return replace(after, **also)


def fold(state: RunState, events: Iterable[m.Event | Unknown]) -> RunState:
    """Apply many events in order."""
    for event in events:
        state = apply(state, event)
    return state


# The slices that every step changes, and their folds of many. A step changes the others only in some states.
_OF_MANY: Final[dict[str, Callable[[Any, ManySteps], Any]]] = {
    "progress": steps_many.progressed,
    "limits": limits.ticked,
    "instability": detection.timed,
}


def apply_steps(state: RunState, made: ManySteps) -> RunState:
    """Return the state after many completed steps: that of `apply` for one after the other, sooner."""
    if not made.size:
        return state
    # The first step ends what was before: a phase, a count of deaths. The others only count, as a rule.
    state = apply(state, _event(made, 0))
    rest = made.part(1)
    if not rest.size:
        return state
    if not _only_count(state, rest):
        return fold(state, (_event(rest, at) for at in range(rest.size)))
    changed = {name: function(getattr(state, name), rest) for name, function in _OF_MANY.items()}
    return replace(state, seq=state.seq + rest.size, **changed)


def _only_count(state: RunState, made: ManySteps) -> bool:
    """Return whether the steps leave all slices as they are but those of `_OF_MANY`."""
    event, at = _event(made, 0), m.Cause(state.seq + 1, state.seq + 1)
    others = ((getattr(state, name), function) for name, function in FOLDS[m.StepCompleted] if name not in _OF_MANY)
    if run.phase_after(state.run.phase, m.StepCompleted) is not state.run.phase:
        return False
    if not all(function(before, event, at) is before for before, function in others):
        return False
    # The Branch at the best validation is saved by the step that leaves its place (`branch`).
    if not state.limits.best_batch:
        return True
    places = (state.progress.place, *zip(made.epoch, made.batch, strict=True))
    return state.limits.best_place not in places


def _event(made: ManySteps, at: int) -> m.StepCompleted:
    """Return one of the steps, without its cause: no fold of a step reads that."""
    fields: dict[str, Any] = {name: column[at] for name, column in zip(made._fields, made, strict=True)}
    return m.StepCompleted(**fields)


_canonical = msgspec.msgpack.Encoder(order="deterministic")


class Capture(msgspec.Struct, frozen=True):
    """A folded state as it is written at the beginning of a segment; msgpack, readable by any reader."""

    fold_version: int
    state: RunState


class StateHash(msgspec.Struct, frozen=True):
    """The hash of the state after event `seq`, for replays with the same FOLD_VERSION."""

    fold_version: int
    seq: int
    hash: bytes


class _Version(msgspec.Struct, frozen=True):
    fold_version: int


_decode_version = msgspec.msgpack.Decoder(_Version).decode
_decode_hash = msgspec.msgpack.Decoder(StateHash).decode


@functools.cache
def _captures() -> msgspec.msgpack.Decoder[Capture]:
    """Return the decoder of captures: made when the first one is read, since it takes a while."""
    return msgspec.msgpack.Decoder(Capture)


def canonical_bytes(state: RunState) -> bytes:
    """Return one byte string for equal states: maps and sets sorted, floats as bits, fields in declared order."""
    return _canonical.encode(state)


def state_hash(state: RunState) -> bytes:
    """Return the SHA-256 of the canonical bytes."""
    return hashlib.sha256(canonical_bytes(state)).digest()


def capture(state: RunState) -> bytes:
    """Return the body of a capture."""
    return _canonical.encode(Capture(FOLD_VERSION, state))


def read_capture(body: bytes) -> RunState | None:
    """Return the state in a capture; None if another FOLD_VERSION wrote it (fold from an older one instead).

    Raises msgspec.DecodeError if the body is not a capture.
    """
    if _decode_version(body).fold_version != FOLD_VERSION:
        return None
    return _captures().decode(body).state


def hash_mark(state: RunState) -> bytes:
    """Return the body of a state-hash mark."""
    return _canonical.encode(StateHash(FOLD_VERSION, state.seq, state_hash(state)))


def hash_agrees(state: RunState, body: bytes) -> bool:
    """Return whether a mark agrees with the folded state. One of another FOLD_VERSION cannot disagree."""
    mark = _decode_hash(body)
    return mark.fold_version != FOLD_VERSION or (mark.seq == state.seq and mark.hash == state_hash(state))
