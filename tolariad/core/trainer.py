"""The trainer's life: slice, apply table, restart with back-off, the limit on deaths.

Invariants: at most one trainer lives; deaths are counted in the journal, and a new durable step sets the count to 0, as does
a batch that enters the quarantine for them, of which only so many do so without such a step; a trainer that ended with its
daemon does not count. It must not know: processes.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from tolariad.core import checkpoints as ckpt_rules
from tolariad.core import quarantine as quarantine_rules
from tolariad.core import rerun as rerun_rules
from tolariad.core import rollback as rollback_rules
from tolariad.core import run as run_rules
from tolariad.core import snapshots as snapshot_rules
from tolariad.core import steps as step_rules
from tolariad.core.decision import NOTHING, Decision
from tolariad.core.inputs import TrainerGone
from tolariad.core.run import EXIT_CODES, EXIT_FAILED, TRAINING, Phase
from tolariad.core.vocabulary import checkpoints as ck
from tolariad.core.vocabulary import quarantine as qn
from tolariad.core.vocabulary import run, steps, trainer
from tolariad.core.vocabulary.base import ApplyTable, Cause, Event

if TYPE_CHECKING:
    from tolariad.core.state import RunState

BACKOFF_S_MAX: Final = 60.0


class Trainer(msgspec.Struct, frozen=True):
    """Slice of RunState: the present trainer, or the last one. `began`: it has restored and trains.

    `cured`: so many batches entered the quarantine for its deaths since the last new step.
    """

    incarnation: int = 0
    alive: bool = False
    pid: int = 0
    start_ticks: int = 0
    boot_id: str = ""
    ready: bool = False
    began: bool = False
    held: bool = False
    deaths: int = 0
    deaths_total: int = 0
    hung: bool = False
    raised: Cause | None = None
    last_death: str = ""
    cured: int = 0


def _started(s: Trainer, e: trainer.TrainerStarted, _: Cause) -> Trainer:
    return Trainer(
        incarnation=e.incarnation,
        alive=True,
        pid=e.pid,
        start_ticks=e.start_ticks,
        boot_id=e.boot_id,
        deaths=s.deaths,
        deaths_total=s.deaths_total,
        last_death=s.last_death,
        cured=s.cured,
    )


def _ready(s: Trainer, _: trainer.ExecutionContextRecorded, __: Cause) -> Trainer:
    return replace(s, ready=True)


def _began(s: Trainer, _: ck.TrainingStarted, __: Cause) -> Trainer:
    return replace(s, began=True)


def _raised(s: Trainer, _: trainer.ExceptionRaised, at: Cause) -> Trainer:
    return replace(s, raised=at)


def _hung(s: Trainer, _: trainer.TrainerHung, __: Cause) -> Trainer:
    return replace(s, hung=True)


def _died(s: Trainer, e: trainer.TrainerDied, _: Cause) -> Trainer:
    counts = e.reason is not trainer.DeathReason.WITH_DAEMON
    return replace(
        s,
        incarnation=max(s.incarnation, e.incarnation),
        alive=False,
        held=False,
        deaths=s.deaths + counts,
        deaths_total=s.deaths_total + counts,
        last_death=(e.signal or e.reason.value) if counts else s.last_death,
    )


def _ended(s: Trainer, _: trainer.TrainerEnded, __: Cause) -> Trainer:
    return replace(s, alive=False, held=False)


def _paused(s: Trainer, _: run.RunPaused, __: Cause) -> Trainer:
    return replace(s, held=s.alive)


def _resumed(s: Trainer, _: run.RunResumed, __: Cause) -> Trainer:
    return replace(s, held=False)


def _stepped(s: Trainer, _: steps.StepCompleted, __: Cause) -> Trainer:
    return replace(s, deaths=0, cured=0) if s.deaths or s.cured else s


def _retried(s: Trainer, _: run.RunRetried, __: Cause) -> Trainer:
    return replace(s, deaths=0, cured=0)


def _cured(s: Trainer, e: qn.QuarantineAdded, _: Cause) -> Trainer:
    """What they were of is passed over from now on."""
    return replace(s, deaths=0, cured=s.cured + 1) if e.deaths else s


APPLY: Final[ApplyTable] = {
    trainer.TrainerStarted: _started,
    trainer.ExecutionContextRecorded: _ready,
    trainer.ExceptionRaised: _raised,
    trainer.TrainerHung: _hung,
    trainer.TrainerDied: _died,
    trainer.TrainerEnded: _ended,
    ck.TrainingStarted: _began,
    run.RunPaused: _paused,
    run.RunResumed: _resumed,
    run.RunRetried: _retried,
    steps.StepCompleted: _stepped,
    qn.QuarantineAdded: _cured,
}


def backoff_s(deaths: int) -> float:
    """1, 2, 4 … 60 seconds before the start that follows the `deaths`-th death in a row."""
    return min(BACKOFF_S_MAX, 2.0 ** max(0, deaths - 1))


def owed(state: RunState, why: str) -> tuple[Event, ...]:
    """The ends of everything a gone trainer had begun."""
    return (
        *ckpt_rules.pending(state, why),
        *snapshot_rules.pending(state, why),
        *step_rules.pending(state, why),
        *rerun_rules.pending(state, why),
        *rollback_rules.pending(state),
    )


def pending(state: RunState, why: str) -> tuple[Event, ...]:
    """What is owed when the daemon that had this trainer is gone: the trainer went with it."""
    if not state.trainer.alive:
        return owed(state, why)
    died = trainer.TrainerDied(
        incarnation=state.trainer.incarnation,
        reason=trainer.DeathReason.WITH_DAEMON,
        step=state.progress.step,
        pid=state.trainer.pid,
    )
    return (died, *owed(state, why))


def decide_spawned(state: RunState, event: trainer.TrainerStarted) -> Decision:
    """A trainer that is not wanted any more (a pause or a stop came meanwhile) is ended at once."""
    if state.run.phase in TRAINING and state.run.pause is None:
        return Decision((event,))
    kill = trainer.KillTrainer(incarnation=event.incarnation, why=f"the run is {state.run.phase.value}")
    return Decision((event,), (kill,))


def environment_hash(environment: trainer.Environment) -> str:
    """SHA-256 over the canonical encoding: equal environments, equal hashes, in any process."""
    return hashlib.sha256(msgspec.msgpack.encode(environment, order="deterministic")).hexdigest()


def decide_ready(state: RunState, report: trainer.ReadyReport) -> Decision:
    """The trainer is built: it trains from the newest checkpoint, or from the start where there is none."""
    recorded = trainer.ExecutionContextRecorded(
        incarnation=state.trainer.incarnation,
        environment=report.environment,
        hash=environment_hash(report.environment),
        parameters=report.parameters,
        steps_per_epoch=report.steps_per_epoch,
        notes=report.notes,
    )
    if not state.checkpoints.catalogue and state.progress.step == 0:
        first = ckpt_rules.take(state, ck.CheckpointReason.START)
        return Decision((recorded,), (rerun_rules.train_from(state, None),)) + first
    return Decision((recorded,)) + start_from_newest(state, recorded.hash)


def start_from_newest(state: RunState, context: str) -> Decision:
    """Order the training, from memory where that is newer; or fail the run where no checkpoint is left for this context."""
    newest = state.checkpoints.newest_for(context)
    if newest is None and state.checkpoints.newest is not None:
        why = (
            "no checkpoint of this run fits the model that the task builds now; `tolaria why RUN rejected` names the first "
            "difference. Give the task its former model and start with --retry"
        )
        return run_rules.failed(state, run.FailureKind.CONFIGURATION, why)
    chosen = snapshot_rules.newest_beyond(state, newest) or newest
    if chosen is None:
        why = "no checkpoint of this run can be used any more; see `tolaria checkpoints`, `tolaria why RUN phase`"
        return run_rules.failed(state, run.FailureKind.CHECKPOINT, why)
    order = rerun_rules.train_from(state, chosen.ref)
    return snapshot_rules.shown(state) + Decision((), (order,)) + ckpt_rules.instead_of_all(state)


def decide_gone(state: RunState, gone: TrainerGone) -> Decision:
    """The trainer is reaped: expected or not, everything it had begun gets its end."""
    known = state.trainer.incarnation
    never_started = gone.incarnation == known + 1
    if not never_started and (gone.incarnation != known or not state.trainer.alive):
        return NOTHING
    phase = state.run.phase
    if phase in TRAINING:
        return _death(state, gone)
    if phase in (Phase.PAUSED, Phase.FROZEN) and not _was_told(gone):
        return _record_death(state, gone, restart_s=None)
    return _ending(state, gone)


def _was_told(gone: TrainerGone) -> bool:
    return gone.reason is trainer.DeathReason.KILLED or gone.exit_code == 0


def _ending(state: RunState, gone: TrainerGone) -> Decision:
    """It ended because the run ends (or stands still and did not want it)."""
    step = state.progress.step
    if state.run.phase is Phase.STOPPING and not _was_told(gone):
        ended = _record_death(state, gone, restart_s=None)
    else:
        event = trainer.TrainerEnded(incarnation=gone.incarnation, step=step)
        ended = Decision((event, *owed(state, "the trainer was ended")))
    match state.run.phase:
        case Phase.STOPPING:
            return ended + run_rules.stopped(state)
        case Phase.COMPLETED:
            return ended + Decision((), (run.ExitDaemon(code=0, why="the run is complete"),))
        case Phase.FAILED:
            code = EXIT_CODES[state.run.failure] if state.run.failure else EXIT_FAILED
            return ended + Decision((), (run.ExitDaemon(code=code, why=state.run.why),))
        case _:
            return ended


def _record_death(state: RunState, gone: TrainerGone, restart_s: float | None) -> Decision:
    raised = state.trainer.raised or Cause(0, 0)
    died = trainer.TrainerDied(
        incarnation=gone.incarnation,
        reason=_reason(state, gone),
        step=state.progress.step,
        pid=gone.pid,
        exit_code=gone.exit_code,
        signal=gone.signal,
        output=gone.output,
        stacks=gone.stacks,
        restart_s=restart_s,
        cause=raised.seq,
        root=raised.root,
    )
    return Decision((died, *owed(state, "the trainer died")))


def _reason(state: RunState, gone: TrainerGone) -> trainer.DeathReason:
    if state.trainer.hung:
        return trainer.DeathReason.HANG
    if state.trainer.raised is not None and gone.reason is trainer.DeathReason.EXIT:
        return trainer.DeathReason.EXCEPTION
    return gone.reason


def _death(state: RunState, gone: TrainerGone) -> Decision:
    """Unexpected: start again after a pause that grows, or give up after too many in a row without a durable step."""
    deaths = state.trainer.deaths + 1
    if deaths >= state.run.policy.deaths_max:
        passed = f" behind {state.trainer.cured} batches that it died of before" if state.trainer.cured else ""
        why = (
            f"the trainer died {deaths} times in a row without a new durable step{passed}; see `tolaria why RUN death`"
        )
        failure = run.RunFailed(kind=run.FailureKind.TRAINER, why=why)
        exit_ = run.ExitDaemon(code=EXIT_FAILED, why=why)
        return _record_death(state, gone, restart_s=None) + Decision((failure,), (exit_,))
    delay_s = backoff_s(deaths)
    died = _record_death(state, gone, restart_s=delay_s) + quarantine_rules.of_a_death(state)
    if state.run.pause is not None:
        return died + Decision((run_rules.paused(state, state.run.pause),))
    next_trainer = trainer.SpawnTrainer(incarnation=gone.incarnation + 1, delay_s=delay_s)
    return died + Decision((), (next_trainer,))
