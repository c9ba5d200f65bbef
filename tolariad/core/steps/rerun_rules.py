"""What follows for re-runs: when one begins and ends, and what a difference leads to."""

from __future__ import annotations

from typing import Protocol

from tolariad.core.base import Cause
from tolariad.core.checkpoints import words as ck
from tolariad.core.checkpoints.slice import HasCheckpoints
from tolariad.core.decision import Decision
from tolariad.core.engine import At
from tolariad.core.rates.slice import HasRates
from tolariad.core.rollback.slice import HasRollbacks
from tolariad.core.run import words as rv
from tolariad.core.snapshots.ask import restorable
from tolariad.core.snapshots.slice import HasSnapshots
from tolariad.core.steps.rerun_slice import HasRerun
from tolariad.core.steps.slice import HasProgress
from tolariad.core.trainer.ask import TrainerIsGone, why_ended
from tolariad.core.trainer.slice import HasTrainer


class Reads(HasProgress, HasCheckpoints, HasTrainer, HasRerun, HasRates, HasRollbacks, HasSnapshots, Protocol):
    """The slices that the rules of re-runs read."""


def started(state: Reads, report: ck.TrainingStartedReport, _: At[Reads]) -> Decision:
    """Record the start of training, and of a re-run if the journal has steps after the checkpoint."""
    last = state.progress.step
    # After any other start the script repeats the orders that acted after the checkpoint, since nothing was undone.
    owed = state.rates.stale and report.checkpoint != state.rollbacks.target
    event = ck.TrainingStarted(
        incarnation=state.trainer.incarnation, step=report.step, checkpoint=report.checkpoint, rates_owed=owed
    )
    if report.step >= last and not _skipped_behind(state, report.checkpoint):
        return Decision((event,))
    # One block, so that rules which react to the start see the re-run.
    return Decision((event, ck.RerunBegun(first=report.step + 1, last=last, checkpoint=report.checkpoint)))


def _skipped_behind(state: Reads, checkpoint: str) -> bool:
    """Return whether anything was skipped after the checkpoint that training starts from."""
    entry = restorable(state, checkpoint)
    return state.progress.last_skip > ((entry.epoch, entry.batch) if entry else (1, 0))


def finished(state: Reads, report: ck.RerunReport, _: At[Reads]) -> Decision:
    """Record the end of the script."""
    begun = state.rerun.open
    at = begun.cause if begun else Cause(0, 0)
    event = ck.RerunFinished(
        first=report.first,
        last=report.last,
        compared=report.compared,
        first_difference=report.first_difference,
        skipped=report.skipped,
        cause=at.seq,
        root=at.root,
    )
    return Decision((event,))


def compared(state: Reads, event: ck.RerunFinished, _: At[Reads]) -> Decision | None:
    """Record a difference that nothing explains: determinism is strict, and every step was made in this environment."""
    progress, difference = state.progress, event.first_difference
    must_be_equal = progress.determinism == "strict" and event.first >= progress.environment_since
    if difference is None or not must_be_equal:
        return None
    return Decision((ck.RerunDiverged(difference=difference),))


def diverged(_: Reads, event: ck.RerunDiverged, __: At[Reads]) -> Decision:
    """Fail the run: a run that does not repeat itself must not be trained on."""
    one = event.difference
    why = f"step {one.step} came out differently when it was run again: {one.field} was {one.expected}, is {one.found}"
    return Decision((rv.RunFailed(kind=rv.FailureKind.DIVERGED, why=why),))


def abort_open(state: Reads, what: TrainerIsGone, _: At[Reads]) -> Decision | None:
    """Abort the open re-run: its trainer is gone."""
    begun = state.rerun.open
    if begun is None:
        return None
    return Decision((ck.RerunAborted(why=why_ended(what), cause=begun.cause.seq, root=begun.cause.root),))
