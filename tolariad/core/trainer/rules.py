"""The rules for a trainer's life: started, built, hung, gone, restarted with a back-off, or given up."""

from __future__ import annotations

from typing import Protocol

from tolariad.core.base import Event
from tolariad.core.checkpoints import words as ck
from tolariad.core.checkpoints.slice import HasCheckpoints
from tolariad.core.control import words as cv
from tolariad.core.decision import Decision
from tolariad.core.engine import At
from tolariad.core.health.ask import would_repeat
from tolariad.core.health.slice import HasHealth
from tolariad.core.inputs import (
    Opened,
    ReportUnusable,
    Scheduled,
    TrainerGone,
    TrainerIsGone,
    TrainerSilent,
    TrainerSpawned,
    TrainerStuck,
)
from tolariad.core.learning_rate.group import other_values
from tolariad.core.rates import words as ov
from tolariad.core.rates.slice import HasRates
from tolariad.core.run import words as rv
from tolariad.core.run.ask import pause_reached
from tolariad.core.run.slice import TRAINING, HasRun, Phase
from tolariad.core.seeds.slice import HasSeeds
from tolariad.core.snapshots import words as sn
from tolariad.core.snapshots.ask import newest_beyond, ring_order
from tolariad.core.snapshots.slice import HasSnapshots
from tolariad.core.steps import words as sv
from tolariad.core.steps.ask import train_from
from tolariad.core.steps.slice import HasProgress
from tolariad.core.trainer import words as tv
from tolariad.core.trainer.data_ask import data_refusal, other_data
from tolariad.core.trainer.slice import HasTrainer, backoff_s, environment_hash


class Reads(HasRun, HasProgress, HasCheckpoints, HasTrainer, HasRates, HasHealth, HasSnapshots, HasSeeds, Protocol):
    """The slices that the rules of the trainer read."""


# -- starting one ------------------------------------------------------------------------------------------------------


def spawned(_: Reads, given: TrainerSpawned, __: At[Reads]) -> Decision:
    """Record the new trainer process."""
    return Decision((tv.TrainerStarted.of(given),))


def unwanted(state: Reads, event: tv.TrainerStarted, _: At[Reads]) -> Decision | None:
    """End the new trainer at once if a pause or a stop came meanwhile."""
    if state.run.phase in TRAINING and state.run.pause is None:
        return None
    why = f"the run is {state.run.phase.value}"
    return Decision((), (tv.KillTrainer(incarnation=event.incarnation, why=why),))


def ready(state: Reads, report: tv.ReadyReport, _: At[Reads]) -> Decision:
    """Record the execution context: the trainer has built its model.

    Fail the run if it has other data than before, or if a rate function gives other values and its file is the same.
    """
    other = other_data(state.progress, report.environment)
    if other and not state.trainer.accepts_data:
        why = f"{data_refusal(other)}. Start the run with its former data and --retry, or go on with --accept-data"
        return Decision((rv.RunFailed(kind=rv.FailureKind.DATA, why=why),))
    if state.progress.step and (name := other_values(state.rates.groups, report.groups)):
        why = (
            f"the rate function {name} gives other values than those in the journal, although its file is the same: "
            "something that it imports has changed. Put that back and start with --retry; or change the file as well, "
            "and start with --retry --accept-config"
        )
        return Decision((rv.RunFailed(kind=rv.FailureKind.CONFIGURATION, why=why),))
    former = state.progress.steps_per_epoch if state.progress.step else 0
    built = tv.ExecutionContextRecorded.of(
        report,
        incarnation=state.trainer.incarnation,
        hash=environment_hash(report.environment),
        other_data=other,
        former_steps_per_epoch=former if former != report.steps_per_epoch else 0,
        other_blueprints=state.seeds.other_blueprints(report.sources),
    )
    return Decision((built,))


def train(state: Reads, event: tv.ExecutionContextRecorded, _: At[Reads]) -> Decision:
    """Order the training: from the newest checkpoint, or from the start if there is none."""
    if not state.checkpoints.catalogue and state.progress.step == 0:
        return Decision((), (train_from(state, None),))
    return _from_newest(state, event.hash)


def train_from_another(state: Reads, _: ck.CheckpointUnusableReport, __: At[Reads]) -> Decision | None:
    """Order the training from another checkpoint: the chosen one is unusable.

    The other messages of a start were sent with the first order.
    """
    return None if state.run.phase is Phase.FAILED else _from_newest(state, state.progress.environment)


def _from_newest(state: Reads, context: str) -> Decision:
    """Order the training, from memory if that is newer. Fail the run if no checkpoint is usable in this context."""
    newest = state.checkpoints.newest_for(context)
    if newest is None and state.checkpoints.newest is not None:
        why = (
            "no checkpoint of this run fits the model that the task builds now; `tolaria why RUN rejected` names the "
            "first difference. Give the task its former model and start with --retry"
        )
        return Decision((rv.RunFailed(kind=rv.FailureKind.CONFIGURATION, why=why),))
    chosen = newest_beyond(state, newest) or newest
    if chosen is None:
        why = "no checkpoint of this run can be used any more; see `tolaria checkpoints`, `tolaria why RUN phase`"
        return Decision((rv.RunFailed(kind=rv.FailureKind.CHECKPOINT, why=why),))
    return Decision((), (*ring_order(state), train_from(state, chosen.ref)))


def rebuild(_: Reads, report: ov.RebuildReport, __: At[Reads]) -> Decision:
    """Record what the trainer did with its optimizer."""
    return Decision((report.told,))


def scheduled(_: Reads, given: Scheduled, __: At[Reads]) -> Decision:
    """Record cores and scheduling class as the system granted them."""
    return Decision((given.recorded,))


def inexact_data(state: Reads, report: tv.InexactDataReport, _: At[Reads]) -> Decision:
    """Record that the data do not repeat themselves, once for each reason."""
    known = report.why in state.progress.inexact
    return Decision(() if known else (tv.InexactDataFound.of(report),))


def data_noted(_: Reads, report: tv.DataNotedReport, __: At[Reads]) -> Decision:
    """Record a note about the data."""
    return Decision((tv.DataNoted.of(report),))


def setup_refused(_: Reads, report: tv.SetupRefusedReport, __: At[Reads]) -> Decision:
    """Fail the run: its task or configuration cannot be trained."""
    return Decision((rv.RunFailed(kind=rv.FailureKind.CONFIGURATION, why=report.why),))


# -- trouble -----------------------------------------------------------------------------------------------------------


def raised(state: Reads, report: tv.ExceptionReport, _: At[Reads]) -> Decision:
    """Record the exception that ended the training loop."""
    return Decision((tv.ExceptionRaised.of(report, incarnation=state.trainer.incarnation),))


def silent(_: Reads, given: TrainerSilent, __: At[Reads]) -> Decision:
    """Record that the trainer hangs. The supervisor then ends it."""
    return Decision((tv.TrainerHung.of(given),))


def stuck(_: Reads, given: TrainerStuck, __: At[Reads]) -> Decision:
    """Freeze the run: the trainer cannot be killed, and no second one may be started beside it."""
    why = f"trainer {given.pid} cannot be ended (state {given.state}); nothing else is started beside it"
    return Decision((tv.TrainerUnkillable.of(given), rv.RunFrozen(why=why)))


def report_unusable(state: Reads, given: ReportUnusable, _: At[Reads]) -> Decision:
    """Refuse the unusable report: nothing that this trainer reports can be trusted."""
    return Decision((state.trainer.refused(given.why),))


def untrusted(_: Reads, event: cv.ReportRefused, __: At[Reads]) -> Decision:
    """End a trainer that contradicts the journal."""
    return Decision((), (tv.KillTrainer(incarnation=event.incarnation, why=event.why),))


# -- the end -----------------------------------------------------------------------------------------------------------


def went_with_daemon(state: Reads, _: Opened, __: At[Reads]) -> Decision | None:
    """Record the death of the previous daemon's trainer, which ended with that daemon."""
    if not state.trainer.alive:
        return None
    died = tv.TrainerDied(
        incarnation=state.trainer.incarnation,
        reason=tv.DeathReason.WITH_DAEMON,
        step=state.progress.step,
        pid=state.trainer.pid,
    )
    return Decision((died,))


def gone(state: Reads, given: TrainerGone, _: At[Reads]) -> Decision | None:
    """Record the end of a trainer: a death, or an end that the run's phase explains."""
    known, phase = state.trainer.incarnation, state.run.phase
    never_started = given.incarnation == known + 1
    if not never_started and (given.incarnation != known or not state.trainer.alive):
        return None
    if phase in TRAINING:
        deaths = state.trainer.deaths + 1
        is_last = deaths >= state.run.policy.deaths_max or would_repeat(state) is not None
        return _died(state, given, None if is_last else backoff_s(deaths))
    was_told = given.reason is tv.DeathReason.KILLED or given.exit_code == 0
    if phase in (Phase.PAUSED, Phase.FROZEN, Phase.STOPPING) and not was_told:
        return _died(state, given, None)
    return Decision((tv.TrainerEnded(incarnation=given.incarnation, step=state.progress.step),))


def _died(state: Reads, given: TrainerGone, restart_s: float | None) -> Decision:
    died = tv.TrainerDied.of(given, reason=_reason(state, given), step=state.progress.step, restart_s=restart_s)
    return Decision((died.caused_by(state.trainer.raised),))


def _reason(state: Reads, given: TrainerGone) -> tv.DeathReason:
    if state.trainer.hung:
        return tv.DeathReason.HANG
    if state.trainer.raised is not None and given.reason is tv.DeathReason.EXIT:
        return tv.DeathReason.EXCEPTION
    return given.reason


def _why_ended(what: TrainerIsGone) -> str:
    """Return the reason as a clause."""
    if isinstance(what, tv.TrainerEnded):
        return ck.TRAINER_ENDED
    is_daemons = isinstance(what, Opened) or what.reason is tv.DeathReason.WITH_DAEMON
    return "the daemon ended" if is_daemons else "the trainer died"


def abort_open(state: Reads, what: TrainerIsGone, _: At[Reads]) -> Decision | None:
    """Abort everything that the trainer had open: checkpoints, a snapshot, a validation, a re-run."""
    why, progress = _why_ended(what), state.progress
    aborted: list[Event] = [ck.CheckpointAborted(id=c.id, why=why).caused_by(c.cause) for c in state.checkpoints.open]
    if (snapshot := state.snapshots.open) is not None:
        aborted.append(sn.SnapshotAborted(id=snapshot.id, why=why).caused_by(snapshot.cause))
    if progress.validating is not None:
        aborted.append(sv.ValidationAborted(epoch=progress.validating_epoch, why=why).caused_by(progress.validating))
    if (rerun := state.progress.rerun) is not None:
        aborted.append(ck.RerunAborted(why=why).caused_by(rerun.cause))
    return Decision(tuple(aborted)) if aborted else None


def given_up(state: Reads, event: tv.TrainerDied, at: At[Reads]) -> Decision | None:
    """Fail the run after too many deaths in a row without a new durable step, or if an exception repeats."""
    is_daemons = event.reason is tv.DeathReason.WITH_DAEMON
    if event.restart_s is not None or is_daemons or at.was.run.phase not in TRAINING:
        return None
    deaths, cured = state.trainer.deaths, state.trainer.cured
    passed = f", after {cured} batches on which it died were quarantined" if cured else ""
    why = f"the trainer died {deaths} times in a row without a new durable step{passed}; see `tolaria why RUN death`"
    if (known := would_repeat(at.was)) is not None:
        why = f"the training raised the same exception twice after step {known.step}: {known.words}"
    return Decision((rv.RunFailed(kind=rv.FailureKind.TRAINER, why=why),))


def restart(state: Reads, event: tv.TrainerDied, _: At[Reads]) -> Decision | None:
    """Start the next trainer after an increasing delay. If a pause was ordered, it is reached now."""
    if event.restart_s is None:
        return None
    if state.run.pause is not None:
        return Decision((pause_reached(state, state.run.pause),))
    return Decision((), (tv.SpawnTrainer(incarnation=event.incarnation + 1, delay_s=event.restart_s),))
