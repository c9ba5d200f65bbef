"""The rules for a trainer's life: started, built, hung, gone, restarted with a back-off, or given up."""

from __future__ import annotations

from typing import Protocol

from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.calc.learning_rate.group import other_values
from tolariad.core.decision import Decision
from tolariad.core.engine import At


class Reads(
    st.HasRun,
    st.HasProgress,
    st.HasCheckpoints,
    st.HasTrainer,
    st.HasRates,
    st.HasHealth,
    st.HasSnapshots,
    st.HasSeeds,
    st.HasStages,
    Protocol,
):
    """The slices that the rules of the trainer read."""


# -- starting one ------------------------------------------------------------------------------------------------------


def spawned(_: Reads, given: m.TrainerSpawned, __: At[Reads]) -> Decision:
    """Record the new trainer process."""
    return Decision((m.TrainerStarted.of(given),))


def unwanted(state: Reads, event: m.TrainerStarted, _: At[Reads]) -> Decision | None:
    """End the new trainer at once if a pause or a stop came meanwhile."""
    if state.run.phase in st.TRAINING and state.run.pause is None:
        return None
    why = f"the run is {state.run.phase.value}"
    return Decision((), (m.KillTrainer(incarnation=event.incarnation, why=why),))


def ready(state: Reads, report: m.ReadyReport, _: At[Reads]) -> Decision:
    """Record the execution context: the trainer has built its model.

    Fail the run if it has other data than before, or if a rate function gives other values and its file is the same.
    """
    other = q.other_data(state.progress, report.environment)
    if other and not state.trainer.accepts_data:
        why = q.data_refusal(other)
        return Decision((m.RunFailed(kind=m.FailureKind.DATA, why=why),))
    if state.progress.step and (name := other_values(state.rates.groups, report.groups)):
        why = (
            f"the rate function {name} gives other values than those in the journal, although its file is the same: "
            "something that it imports has changed. Put that back; or change the file as well, and accept that the "
            "configuration is another one"
        )
        return Decision((m.RunFailed(kind=m.FailureKind.CONFIGURATION, why=why),))
    former = state.progress.steps_per_epoch if state.progress.step else 0
    other_code = q.other_code(state.progress, report.code)
    built = m.ExecutionContextRecorded.of(
        report,
        incarnation=state.trainer.incarnation,
        hash=st.environment_hash(report.environment),
        other_data=other,
        former_steps_per_epoch=former if former != report.steps_per_epoch else 0,
        other_blueprints=state.seeds.other_blueprints(report.sources),
        other_code=other_code,
        only_code=bool(other_code) and q.is_same_but_code(state.progress, report.environment),
        accepts_code=state.trainer.accepts_code,
    )
    return Decision((built,))


def train(state: Reads, event: m.ExecutionContextRecorded, _: At[Reads]) -> Decision:
    """Order the training: from the newest checkpoint, or from the start if there is none."""
    if not state.checkpoints.catalogue and state.progress.step == 0:
        return Decision((), (q.train_from(state, None),))
    return _from_newest(state, event.hash)


def train_from_another(state: Reads, report: m.CheckpointUnusableReport, _: At[Reads]) -> Decision | None:
    """Order the training from another checkpoint: the chosen one is unusable.

    The other messages of a start were sent with the first order.
    """
    if state.run.phase is st.Phase.FAILED:
        return None
    return _from_newest(state, state.progress.environment, f"{report.file}: {report.why}" if report.unfit else "")


def _from_newest(state: Reads, context: str, unfit: str = "") -> Decision:
    """Order the training, from memory if that is newer. Fail the run if no checkpoint is usable in this context.

    `unfit`: why the last one that was tried does not fit; "" if none was tried now.
    """
    newest = state.checkpoints.newest_for(context)
    if newest is None and state.checkpoints.newest is not None:
        maker, named = "program" if q.is_program(state) else "task", unfit or "`tolaria why RUN rejected` names it"
        why = (
            f"no checkpoint of this run fits what the {maker} has now. The first difference: {named}. Give the {maker} "
            "what it had"
        )
        return Decision((m.RunFailed(kind=m.FailureKind.CONFIGURATION, why=why),))
    chosen = q.newest_beyond(state, newest) or newest
    if chosen is None:
        why = "no checkpoint of this run can be used any more; see `tolaria checkpoints`, `tolaria why RUN phase`"
        return Decision((m.RunFailed(kind=m.FailureKind.CHECKPOINT, why=why),))
    return Decision((), (*q.ring_order(state), q.train_from(state, chosen.ref)))


def rebuild(_: Reads, report: m.RebuildReport, __: At[Reads]) -> Decision:
    """Record what the trainer did with its optimizer."""
    return Decision((report.told,))


def scheduled(_: Reads, given: m.Scheduled, __: At[Reads]) -> Decision:
    """Record cores and scheduling class as the system granted them."""
    return Decision((given.recorded,))


def spare(_: Reads, given: m.SpareNoted, __: At[Reads]) -> Decision:
    """Record what became of the spare."""
    return Decision((given.recorded,))


def inexact_data(state: Reads, report: m.InexactDataReport, _: At[Reads]) -> Decision:
    """Record that the data do not repeat themselves, once for each reason."""
    known = report.why in state.progress.inexact
    return Decision(() if known else (m.InexactDataFound.of(report),))


def told(_: Reads, report: m.Told, __: At[Reads]) -> Decision:
    """Record what the trainer alone knows. Time, cause and giver are not its to say."""
    return Decision((replace(report.event, wall=0, mono=0, cause=0, root=0, actor=None),))


def setup_refused(_: Reads, report: m.SetupRefusedReport, __: At[Reads]) -> Decision:
    """Fail the run: its task or configuration cannot be trained."""
    return Decision((m.RunFailed(kind=m.FailureKind.CONFIGURATION, why=report.why),))


# -- trouble -----------------------------------------------------------------------------------------------------------


def raised(state: Reads, report: m.ExceptionReport, _: At[Reads]) -> Decision:
    """Record the exception that ended the training loop."""
    return Decision((m.ExceptionRaised.of(report, incarnation=state.trainer.incarnation),))


def silent(_: Reads, given: m.TrainerSilent, __: At[Reads]) -> Decision:
    """Record that the trainer hangs. The supervisor then ends it."""
    return Decision((m.TrainerHung.of(given),))


def stuck(_: Reads, given: m.TrainerStuck, __: At[Reads]) -> Decision:
    """Freeze the run: the trainer cannot be killed, and no second one may be started beside it."""
    why = f"trainer {given.pid} cannot be ended (state {given.state}); nothing else is started beside it"
    return Decision((m.TrainerUnkillable.of(given), m.RunFrozen(why=why)))


def report_unusable(state: Reads, given: m.ReportUnusable, _: At[Reads]) -> Decision:
    """Refuse the unusable report: nothing that this trainer reports can be trusted."""
    return Decision((state.trainer.refused(given.why),))


def untrusted(_: Reads, event: m.ReportRefused, __: At[Reads]) -> Decision:
    """End a trainer that contradicts the journal."""
    return Decision((), (m.KillTrainer(incarnation=event.incarnation, why=event.why),))


# -- the end -----------------------------------------------------------------------------------------------------------


def went_with_daemon(state: Reads, _: m.Opened, __: At[Reads]) -> Decision | None:
    """Record the death of the previous daemon's trainer, which ended with that daemon."""
    if not state.trainer.alive:
        return None
    died = m.TrainerDied(
        incarnation=state.trainer.incarnation,
        reason=m.DeathReason.WITH_DAEMON,
        step=state.progress.step,
        pid=state.trainer.pid,
    )
    return Decision((died,))


def gone(state: Reads, given: m.TrainerGone, at: At[Reads]) -> Decision | None:
    """Record the end of a trainer: a death, or an end that the run's phase explains."""
    known, phase = state.trainer.incarnation, state.run.phase
    never_started = given.incarnation == known + 1
    if not never_started and (given.incarnation != known or not state.trainer.alive):
        return None
    if phase in st.TRAINING:
        deaths = state.trainer.deaths + 1
        is_last = deaths >= state.run.policy.deaths_max or q.would_repeat(state) is not None
        return _died(state, given, None if is_last else st.backoff_s(state.trainer, at.now.mono))
    was_told = given.reason is m.DeathReason.KILLED or given.exit_code == 0
    if phase in (st.Phase.PAUSED, st.Phase.FROZEN, st.Phase.STOPPING) and not was_told:
        return _died(state, given, None)
    return Decision((m.TrainerEnded(incarnation=given.incarnation, step=state.progress.step),))


def _died(state: Reads, given: m.TrainerGone, restart_s: float | None) -> Decision:
    died = m.TrainerDied.of(given, reason=_reason(state, given), step=state.progress.step, restart_s=restart_s)
    return Decision((died.caused_by(state.trainer.raised),))


def _reason(state: Reads, given: m.TrainerGone) -> m.DeathReason:
    if state.trainer.hung:
        return m.DeathReason.HANG
    if state.trainer.raised is not None and given.reason is m.DeathReason.EXIT:
        return m.DeathReason.EXCEPTION
    return given.reason


def _why_ended(what: m.TrainerIsGone) -> str:
    """Return the reason as a clause."""
    if isinstance(what, m.TrainerEnded):
        return m.TRAINER_ENDED
    is_daemons = isinstance(what, m.Opened) or what.reason is m.DeathReason.WITH_DAEMON
    return m.DAEMON_ENDED if is_daemons else m.TRAINER_DIED


def abort_open(state: Reads, what: m.TrainerIsGone, _: At[Reads]) -> Decision | None:
    """Abort everything that the trainer had open: checkpoints, a snapshot, a validation, a re-run."""
    why, progress = _why_ended(what), state.progress
    aborted: list[m.Event] = [m.CheckpointAborted(id=c.id, why=why).caused_by(c.cause) for c in state.checkpoints.open]
    if (snapshot := state.snapshots.open) is not None:
        aborted.append(m.SnapshotAborted(id=snapshot.id, why=why).caused_by(snapshot.cause))
    if progress.validating is not None:
        aborted.append(m.ValidationAborted(epoch=progress.validating_epoch, why=why).caused_by(progress.validating))
    if (rerun := state.progress.rerun) is not None:
        aborted.append(m.RerunAborted(why=why).caused_by(rerun.cause))
    return Decision(tuple(aborted)) if aborted else None


def given_up(state: Reads, event: m.TrainerDied, at: At[Reads]) -> Decision | None:
    """Fail the run after too many deaths in a row without a new durable step, or if an exception repeats."""
    is_daemons = event.reason is m.DeathReason.WITH_DAEMON
    if event.restart_s is not None or is_daemons or at.was.run.phase not in st.TRAINING:
        return None
    deaths, cured = state.trainer.deaths, state.trainer.cured
    passed = f", after {cured} batches on which it died were quarantined" if cured else ""
    why = f"the trainer died {deaths} times in a row without a new durable step{passed}; see `tolaria why RUN death`"
    if (known := q.would_repeat(at.was)) is not None:
        why = f"the training raised the same exception twice after step {known.step}: {known.words}"
    return Decision((m.RunFailed(kind=m.FailureKind.TRAINER, why=why),))


def restart(state: Reads, event: m.TrainerDied, _: At[Reads]) -> Decision | None:
    """Start the next trainer after an increasing delay. If a pause was ordered, it is reached now."""
    if event.restart_s is None:
        return None
    if state.run.pause is not None:
        return Decision((q.pause_reached(state, state.run.pause),))
    return Decision((), (m.SpawnTrainer(incarnation=event.incarnation + 1, delay_s=event.restart_s),))
