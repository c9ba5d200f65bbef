"""What was known of training at each place that a rollback may go to, and how a rollback brings it back.

When a trainer copies its state for a checkpoint or a snapshot (StateCopied), the fold keeps beside it what it knows of
training there. RolledBack restores it. `ROWS` says of every field of RunState what a rollback does with it, and why.

Invariants: after a rollback every field that is `RESTORED` has the value that it had when the target was copied. What is kept
belongs to a checkpoint or snapshot that is open or may still be gone back to: CATALOGUE_MAX and SLOTS_MAX of them at most,
and two places beside them. A restart that runs steps again changes nothing here.
It must not know: what any of the fields means.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec.structs import asdict, fields, replace

from tolariad.core.decision import NOTHING, Decision
from tolariad.core.rates import Change
from tolariad.core.vocabulary import checkpoints as ck
from tolariad.core.vocabulary import rollback as rb
from tolariad.core.vocabulary import run, steps
from tolariad.core.vocabulary import snapshots as sn

if TYPE_CHECKING:
    from tolariad.core.state import RunState
    from tolariad.core.vocabulary import Event


class KnownProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of `steps.Progress`."""

    loss: float | None = None
    grad_norm: float | None = None
    lr: float | None = None
    epoch_first_step: int = 1
    epoch_loss_sum: float = 0.0
    metrics: dict[str, float] = {}
    best_accuracy: float | None = None
    train_loss: float | None = None
    skip_epoch: int = 0
    skip_batch: int = 0


class KnownLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of `limits.Limits`."""

    best: float | None = None
    best_epoch: int = 0
    reached: steps.Limit | None = None


class KnownRates(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of `rates.Rates`: why each rate is what it is. The rates themselves lie in the checkpoint."""

    changes: dict[str, Change] = {}
    unjudged: bool = False


class KnownStability(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of `conservative.Stability`."""

    in_epoch: int = 0


class KnownInstability(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of `instability.Instability`: the averages that accuracy and step time are held against."""

    accuracy: float | None = None
    validations: int = 0
    collapsed: bool = False
    step_s: float = 0.0


class KnownSnapshots(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of `snapshots.Snapshots`."""

    unhealthy_step: int = 0


class Known(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was known at one place: after `step`, where batch `batch` of `epoch` had been taken."""

    step: int = 0
    epoch: int = 1
    batch: int = 0
    progress: KnownProgress = KnownProgress()
    limits: KnownLimits = KnownLimits()
    rates: KnownRates = KnownRates()
    stability: KnownStability = KnownStability()
    instability: KnownInstability = KnownInstability()
    snapshots: KnownSnapshots = KnownSnapshots()

    @property
    def place(self) -> tuple[int, int]:
        """Epoch and batch."""
        return self.epoch, self.batch


class Knowledge(msgspec.Struct, frozen=True):
    """Slice of RunState. `held`: by the name of the checkpoint or snapshot.

    A trainer that runs steps again may copy its state at a place that the fold has passed already: at the last batch of the
    newest epoch, or at the end of the best one. `last_batch` and `best_end` are what was known there.
    """

    held: dict[str, Known] = {}
    last_batch: Known | None = None
    best_end: Known | None = None


_PARTS: Final[dict[str, type[msgspec.Struct]]] = {
    "progress": KnownProgress,
    "limits": KnownLimits,
    "rates": KnownRates,
    "stability": KnownStability,
    "instability": KnownInstability,
    "snapshots": KnownSnapshots,
}


# -- what a rollback does with every field -----------------------------------------------------------------------------


class Fate(enum.Enum):
    """What a rollback does with a field: gives it the value it had at the target; its default; what RolledBack says, by the
    slice's own rule; nothing.
    """

    RESTORED = "restored"
    ANEW = "begins anew"
    SET = "set by the rollback"
    SURVIVES = "survives"


class Row(NamedTuple):
    """Some fields of one slice that share a fate, and why."""

    slice: str
    fate: Fate
    names: str
    why: str


def _restored(slice_: str, why: str) -> Row:
    return Row(slice_, Fate.RESTORED, " ".join(_PARTS[slice_].__struct_fields__), why)


ROWS: Final = (
    Row("seq", Fate.SURVIVES, "", "the journal's own number: nothing is ever taken out of the journal"),
    Row("run", Fate.SET, "phase", "the rollback ends: the run recovers"),
    Row(
        "run",
        Fate.SURVIVES,
        "run_id name task rng_seed config config_hash policy started_wall parent",
        "which run this is and how it is configured",
    ),
    Row(
        "run",
        Fate.SURVIVES,
        "pause stop why failure daemon_pid boot_id starts gap",
        "orders of people and of the system, and the daemon's process",
    ),
    _restored(
        "progress", "the last step's figures, the epoch's sums, the last validation, the best accuracy, the last skip"
    ),
    Row(
        "progress",
        Fate.SET,
        "step epoch batch epoch_started epoch_validated epoch_finished",
        "RolledBack names the place; these have the values that they had there",
    ),
    Row("progress", Fate.SET, "branch", "a rollback opens a new branch"),
    Row("progress", Fate.SET, "digest", "it covers all that training did, what was left included"),
    Row("progress", Fate.SET, "epoch_mono speed", "they measure time, which does not go back"),
    Row("progress", Fate.SET, "environment_since", "every step after the target is made in the present environment"),
    Row("progress", Fate.ANEW, "validating validating_epoch", "a validation under way ends with the rollback"),
    Row("progress", Fate.SURVIVES, "last_mono last_wall", "when the last step was recorded: time does not go back"),
    Row("progress", Fate.SURVIVES, "steps_per_epoch environment determinism", "they describe the present trainer"),
    Row("progress", Fate.SURVIVES, "skipped", "a counter"),
    Row("checkpoints", Fate.SET, "catalogue open best watched", "checkpoints beyond the target are abandoned"),
    Row("checkpoints", Fate.SET, "branch", "a rollback opens a new branch"),
    Row("checkpoints", Fate.SET, "clock_mono", "the next checkpoint is due an interval after the rollback"),
    Row(
        "checkpoints",
        Fate.SET,
        "watch_from",
        "the run went wrong after the target, so no checkpoint is promoted before enough new healthy steps",
    ),
    Row("checkpoints", Fate.SURVIVES, "ordered removed", "counters; a name is never used twice"),
    Row("checkpoints", Fate.SURVIVES, "removing exhausted given_up", "they describe files on disk"),
    Row("checkpoints", Fate.SURVIVES, "script_seq rerunning", "they describe the present trainer's re-run"),
    Row(
        "trainer",
        Fate.SURVIVES,
        "incarnation alive pid start_ticks boot_id ready began held deaths deaths_total hung raised last_death cured",
        "the trainer's process and its deaths: a rollback changes neither",
    ),
    Row("rerun", Fate.SURVIVES, "open finished compared differed", "the present trainer's re-run, and counters"),
    Row("control", Fate.SURVIVES, "outcomes accepted", "a repeated order must find its first answer"),
    _restored(
        "limits", "the best epoch and what patience counts from; a limit that was reached after the target is not"
    ),
    Row("limits", Fate.ANEW, "clock_mono", "no time of training is counted until training has begun again"),
    Row(
        "limits", Fate.SURVIVES, "trained_ns", "`stop.hours` counts hours that were spent, whatever became of the steps"
    ),
    _restored("rates", "why each rate is what it is; whether an epoch without a metric was said"),
    Row(
        "rates",
        Fate.SET,
        "groups acted stale",
        "the checkpoint itself holds the rates: the trainer says what they are when it stands there (RatesRestored)",
    ),
    Row("rates", Fate.SURVIVES, "pending", "an accepted order acts once, on whichever branch"),
    Row("rates", Fate.SURVIVES, "max_order_factor", "configuration"),
    _restored("stability", "rate violations of the target's epoch"),
    Row(
        "stability",
        Fate.ANEW,
        "healthy_epochs",
        "conservative mode survives, so the healthy epochs that end it are counted from the rollback on",
    ),
    Row("stability", Fate.SURVIVES, "failures reset_s probes heeds_budgets", "configuration"),
    Row(
        "stability",
        Fate.SURVIVES,
        "breaker violations total",
        "a breaker and counters: whoever changed rates is still there",
    ),
    Row(
        "stability",
        Fate.SURVIVES,
        "since since_wall why troubled",
        "conservative mode may be the answer to the very trouble that the run goes back from",
    ),
    Row(
        "rollbacks",
        Fate.SET,
        "done open target lines rate_factor places",
        "the history of rollbacks itself: it keeps the run from going back to one place for ever",
    ),
    Row("rollbacks", Fate.SURVIVES, "begun asked", "a counter; an order that waits"),
    Row(
        "emergency",
        Fate.SURVIVES,
        "level why raised troubled",
        "the level falls only after a whole healthy epoch, or by an operator's order",
    ),
    _restored("instability", "the averages that accuracy and step time are held against"),
    Row(
        "instability",
        Fate.ANEW,
        "asked last_mono",
        "the question is answered; the step after the rollback is timed from itself",
    ),
    Row("instability", Fate.SURVIVES, "found", "a counter"),
    Row(
        "instability",
        Fate.SURVIVES,
        "trouble",
        "where the run went back from, and how often: else it would do so for ever",
    ),
    Row("instability", Fate.SURVIVES, "chance", "configuration"),
    Row("quarantine", Fate.SURVIVES, "added entries", "a batch that did harm is not used again, on any branch"),
    Row("disk", Fate.SURVIVES, "low free floor", "it describes the disk"),
    Row("overruns", Fate.SET, "meters breakers", "what this rollback took is measured"),
    Row("overruns", Fate.ANEW, "going raised", "the rollback and the emergency that led to it are over"),
    Row("overruns", Fate.SURVIVES, "act limits breaker_rules parameters", "configuration, and the size of the model"),
    Row("overruns", Fate.SURVIVES, "slow_boundaries", "how slow the machine is does not depend on the branch"),
    _restored("snapshots", "the last step that was not healthy"),
    Row("snapshots", Fate.SET, "kept fresh", "snapshots beyond the target are gone, the others are watched anew"),
    Row("snapshots", Fate.SET, "branch", "a rollback opens a new branch"),
    Row("snapshots", Fate.SET, "last_step last_epoch", "the next snapshot is due as if the target were the last"),
    Row("snapshots", Fate.SURVIVES, "begun ring off open", "a counter, the memory, and one that is being taken"),
    Row("said", Fate.SURVIVES, "starts", "a counter"),
    Row("said", Fate.SET, "total latest", "the rollback itself is said; what was said before stays"),
    Row("known", Fate.SET, "held last_batch best_end", "what belongs to places beyond the target is dropped"),
)
_ANEW: Final = {row.slice: row.names.split() for row in ROWS if row.fate is Fate.ANEW}


# -- the fold ----------------------------------------------------------------------------------------------------------


def known_of(state: RunState) -> Known:
    """What is known where training stands."""
    epoch, batch = state.progress.place
    parts = {
        name: part(**{field: getattr(getattr(state, name), field) for field in part.__struct_fields__})
        for name, part in _PARTS.items()
    }
    return Known(state.progress.step, epoch, batch, **parts)  # type: ignore[arg-type]  # each part is its field's type


def _copied(before: RunState, after: RunState, e: ck.StateCopied) -> RunState:
    """What was known at the place of the copy; nothing, if that is none of the places known here."""
    opened = after.snapshots.open
    names = {one.id for one in after.checkpoints.open} | ({opened.id} if opened else set())
    s, place = after.known, (e.epoch, e.batch)
    # The fold stays at an epoch's last batch while that is validated: `last_batch` is of the time before.
    here = known_of(before) if before.progress.place == place else None
    found = next((one for one in (s.last_batch, here, s.best_end) if one is not None and one.place == place), None)
    if e.id not in names or found is None or found.step != e.step:
        return after
    return replace(after, known=replace(s, held={**s.held, e.id: found}))


def _batches_over(before: RunState, after: RunState, _: Event) -> RunState:
    """The epoch's last batch is done: what follows belongs to its end."""
    marked, place = after.known.last_batch, before.progress.place
    if place[1] == 0 or (marked is not None and (marked.place, marked.step) == (place, before.progress.step)):
        return after
    return replace(after, known=replace(after.known, last_batch=known_of(before)))


def _epoch_started(before: RunState, after: RunState, _: Event) -> RunState:
    """The end of the best epoch is left behind."""
    if before.progress.place != (before.limits.best_epoch + 1, 0) or not before.limits.best_epoch:
        return after
    return replace(after, known=replace(after.known, best_end=known_of(before)))


def _rolled_back(before: RunState, after: RunState, e: rb.RolledBack) -> RunState:
    """Restore what was known at the target, and drop what belongs to places beyond it."""
    known = before.known.held.get(e.checkpoint) or _nearest(before, e)
    slices: dict[str, Any] = {name: replace(getattr(after, name), **asdict(getattr(known, name))) for name in _PARTS}
    for name, anew in _ANEW.items():
        slice_ = slices.get(name, getattr(after, name))
        slices[name] = replace(slice_, **{field: _default_of(type(slice_), field) for field in anew})
    s, fork = after.known, (e.epoch, e.batch)
    kept = [one if one is not None and one.place < fork else None for one in (s.last_batch, s.best_end)]
    slices["known"] = Knowledge(s.held, *kept)
    return _pruned(before, replace(after, **slices), e)


def _nearest(state: RunState, e: rb.RolledBack) -> Known:
    """For a target of which nothing was kept (an older version made it): the newest place before it, else a run's beginning."""
    opened = {one.id for one in state.checkpoints.open}
    older = (one for id_, one in state.known.held.items() if id_ not in opened and one.place <= (e.epoch, e.batch))
    return max(older, key=lambda one: (one.place, one.step), default=Known())


def _default_of(kind: type[msgspec.Struct], name: str) -> Any:
    return next(field.default for field in fields(kind) if field.name == name)


def _pruned(_: RunState, after: RunState, __: Event) -> RunState:
    """Keep only what belongs to something that is open, or may be gone back to."""
    s, snapshots = after.known, after.snapshots
    names = {one.id for one in after.checkpoints.open} | {one.id for one in snapshots.kept}
    names |= {one.id for one in after.checkpoints.catalogue if one.is_target or one.quarantined}
    if snapshots.open is not None:
        names.add(snapshots.open.id)
    if s.held.keys() <= names:
        return after
    return replace(after, known=replace(s, held={id_: one for id_, one in s.held.items() if id_ in names}))


def decide_copied(state: RunState, report: ck.StateCopiedReport) -> Decision:
    """Record the copy, unless what it was made for has its end already."""
    opened = state.snapshots.open
    causes = {one.id: one.cause for one in state.checkpoints.open} | ({opened.id: opened.cause} if opened else {})
    at = causes.get(report.id)
    if at is None:
        return NOTHING
    copied = ck.StateCopied(
        id=report.id, step=report.step, epoch=report.epoch, batch=report.batch, cause=at.seq, root=at.root
    )
    return Decision((copied,))


# Event type -> function of (the state before it, the state that the slices' own tables made of it, the event).
APPLY: Final[dict[type[Event], Callable[[RunState, RunState, Any], RunState]]] = {
    ck.StateCopied: _copied,
    steps.ValidationBegun: _batches_over,
    steps.EpochFinished: _batches_over,
    steps.EpochStarted: _epoch_started,
    rb.RolledBack: _rolled_back,
    **dict.fromkeys(
        (
            ck.CheckpointCommitted,
            ck.CheckpointAborted,
            ck.CheckpointRejected,
            ck.CheckpointDeletionBegun,
            sn.SnapshotBegun,
            sn.SnapshotTaken,
            sn.SnapshotAborted,
            sn.SnapshotRejected,
            sn.SnapshotRingOpened,
            run.DaemonStarted,
        ),
        _pruned,
    ),
}
