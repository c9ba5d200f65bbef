"""The status of a run: one flat value, made from the folded state and the few facts that only a live daemon has.

Promises: a pure function. The fields are the same over the socket, with `--json`, and without a daemon (`live` false).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tolariad.control.notices import said_status, trouble_status
from tolariad.control.pruning import prune_summary
from tolariad.control.replies import (
    CheckpointStatus,
    ConservativeStatus,
    EmergencyStatus,
    JournalStatus,
    MemoryStatus,
    RanksStatus,
    RankStatus,
    ReceiverStatus,
    RunStatus,
    Server,
    StageStatus,
    TrainerStatus,
)
from tolariad.control.strategy_status import strategy_status
from tolariad.control.tables import growing
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.calc.text.phrases import with_run
from tolariad.core.calc.text.plain import finite, number_state, rfc3339
from tolariad.core.state.run_state import RunState


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """The trainer's last heartbeat, from the shared page, if there was one. `waiting`: it waits at the gate."""

    step: int | None = None
    age_s: float | None = None
    activity: str | None = None
    waiting: bool = False


class LiveFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that are not in the state: process, clocks, shared page, journal writer. If none is live, `pid` is None.

    `write_age_s` is the age of a write in flight, or 0; `waits_for_space`: it finds none on the disk. `spare_bytes`:
    the memory of a spare that is ready. `process_of`: what a process of this number does, as RankStatus says it.
    """

    pid: int | None = None
    served_by: Server | None = None
    dir_inode: str | None = None
    wall_ns: int = 0
    mono_ns: int = 0
    heartbeat: Heartbeat = Heartbeat()
    segment: int = 0
    journal_failed: str | None = None
    write_age_s: float | None = None
    waits_for_space: bool = False
    spare_bytes: int | None = None
    process_of: Callable[[int], str] = lambda _: "running"
    receivers: tuple[ReceiverStatus, ...] = ()

    def age_s(self, wall_ns: int) -> float | None:
        """Return the seconds since a moment, or None without a daemon."""
        return max(0.0, (self.wall_ns - wall_ns) / 1e9) if self.pid is not None else None


def run_status(state: RunState, directory: str, facts: LiveFacts) -> RunStatus:
    """Return the status of `state`. Without a daemon there are no pid, speed and ages."""
    progress, run, live = state.progress, state.run, facts.pid is not None
    failed = facts.journal_failed
    phase = st.Phase.FROZEN if failed and run.phase not in st.TERMINAL else run.phase
    total = q.steps_in_all(state)
    if phase is st.Phase.COMPLETED and not progress.steps_per_epoch:
        total = progress.step  # the data ended; `stop.steps` was only what it might have had at most
    speed = st.speed_steps_s(progress, facts.mono_ns) if live and phase in st.TRAINING else None
    metric, emergency = progress.metrics.get, state.emergency
    return RunStatus(
        name=run.name,
        run_id=run.run_id,
        dir=directory,
        task=run.task,
        phase=phase.value,
        live=live,
        pid=facts.pid,
        time=rfc3339(facts.wall_ns if live else max(progress.last_wall, run.started_wall)),
        epoch=progress.epoch,
        epochs=q.epochs_in_all(state),
        step=progress.step,
        steps_total=total,
        steps_per_epoch=progress.steps_per_epoch or None,
        **_number("loss", progress.loss),
        **_number("grad_norm", progress.grad_norm),
        **_number("lr", progress.lr),
        **_number("train_loss", progress.train_loss),
        **_number("validation_loss", metric("loss")),
        **_number("accuracy", metric("accuracy")),
        best_accuracy=finite(progress.best_accuracy),
        metrics={name: finite(value) for name, value in progress.metrics.items()},
        steps_per_s=speed,
        eta_s=(total - progress.step) / speed if total and speed else None,
        ordered=_ordered(state),
        frozen=failed or (run.why if phase is st.Phase.FROZEN else None),
        last_error=_last_error(state, failed),
        failure=run.failure.value if run.failure else None,
        rerunning_to=state.progress.rerun.last if state.progress.rerun else None,
        rng_seed=run.rng_seed,
        starts=run.starts,
        checkpoint=_checkpoint(state, facts),
        checkpoint_none=_no_checkpoint(state),
        journal=JournalStatus(seq=state.seq, segment=facts.segment, failed=failed, write_age_s=facts.write_age_s),
        trainer=_trainer(state, facts),
        conservative=_conservative(state, facts),
        emergency=EmergencyStatus(level=emergency.level.value, why=emergency.why) if emergency.level else None,
        memory=_memory(state, facts),
        strategy=strategy_status(state, facts.mono_ns),
        disk_low=_disk(state, facts),
        said=said_status(state, directory),
        troubles=trouble_status(state, directory),
        served_by=facts.served_by,
        step_metrics={name: finite(value) for name, value in progress.step_metrics.items()},
        seeds=growing(state),
        pruning=prune_summary(state),
        detector=_detector(state, directory),
        dir_inode=facts.dir_inode,
        stage=_stage(state),
        ranks=_ranks(state, facts),
        receivers=facts.receivers,
    )


def _ranks(state: RunState, facts: LiveFacts) -> RanksStatus | None:
    times = state.trainer.ranks
    if not times:
        return None
    slow = m.slowest_rank(times)
    is_live = facts.pid is not None and state.trainer.alive
    return RanksStatus(
        ranks=tuple(
            RankStatus(
                rank=one.rank,
                pid=one.pid,
                process=facts.process_of(one.pid) if is_live else None,
                compute_s=one.compute_s / one.steps if one.steps else None,
                wait_s=one.wait_s / one.steps if one.steps else None,
                batch=one.batch or None,
            )
            for one in times
        ),
        slowest=slow.rank if slow is not None else None,
        share=slow.share if slow is not None else None,
        batch=sum(one.batch for one in times) if all(one.batch for one in times) else None,
    )


def _detector(state: RunState, directory: str) -> str | None:
    """Return what the detector's findings do not lead to, else what the autopilot does or keeps."""
    if state.run.phase in st.TERMINAL:
        return with_run(q.kept_in_words(state), directory) or None
    if not state.run.policy.detect_rollback:
        return "findings are only recorded; the run does not roll back for them (detect.rollback)"
    told = q.autopilot_in_words(state)
    return None if told is None else with_run(told, directory)


def _stage(state: RunState) -> StageStatus | None:
    newest = state.stages.newest
    return StageStatus(why=newest.why, step=newest.before_step) if newest is not None else None


def _disk(state: RunState, facts: LiveFacts) -> str | None:
    # What the state says of it may be old: nothing can be recorded on a full disk.
    if facts.waits_for_space:
        return "the journal's disk is full"
    return state.disk.words if state.disk.low is not None else None


def _number(name: str, value: float | None) -> dict[str, Any]:
    """Return the two fields of a number that may not be finite."""
    return {name: finite(value), f"{name}_state": number_state(value)}


def _ordered(state: RunState) -> str | None:
    """Return the order that is accepted but not carried out yet."""
    if state.run.phase is st.Phase.STOPPING:
        return "stop"
    return "pause" if state.run.pause is not None and state.run.phase is not st.Phase.PAUSED else None


def _last_error(state: RunState, failed: str | None) -> str | None:
    if failed or state.run.phase is st.Phase.FAILED:
        return failed or state.run.why
    trainer = state.trainer
    if state.run.phase is st.Phase.COMPLETED or (state.run.phase is st.Phase.STOPPED and not trainer.deaths):
        return None  # what a trainer died of was overcome; `deaths_total` counts it
    why = trainer.exception.words if trainer.exception is not None else trainer.last_death
    return f"the trainer ended: {why}" if trainer.last_death else None


def _checkpoint(state: RunState, facts: LiveFacts) -> CheckpointStatus | None:
    newest = state.checkpoints.newest
    if newest is None:
        return None
    return CheckpointStatus.of(
        newest,
        time=rfc3339(newest.wall),
        age_s=facts.age_s(newest.wall),
        given_up=state.checkpoints.given_up or None,
    )


def _no_checkpoint(state: RunState) -> str | None:
    """Return what happened to the checkpoints if none is usable any more, else None."""
    held = state.checkpoints
    lost = st.none_left(held.catalogue, held.removed)
    given_up = f"; the last one was given up: {held.given_up}" if held.given_up else ""
    return f"{lost}{given_up}" if lost else None


def _trainer(state: RunState, facts: LiveFacts) -> TrainerStatus | None:
    trainer, beat = state.trainer, facts.heartbeat
    if not trainer.incarnation:
        return None
    return TrainerStatus.of(
        trainer,
        alive=trainer.alive and facts.pid is not None,
        last_death=trainer.last_death or None,
        activity=beat.activity,
        waiting=beat.waiting,
        heartbeat_step=beat.step,
        heartbeat_age_s=beat.age_s,
        spare_bytes=facts.spare_bytes,
    )


def _memory(state: RunState, facts: LiveFacts) -> MemoryStatus | None:
    pressure = state.overruns.memory
    if pressure is None:
        return None
    since = pressure.since_wall
    return MemoryStatus.of(pressure, since=rfc3339(since), age_s=facts.age_s(since))


def _conservative(state: RunState, facts: LiveFacts) -> ConservativeStatus | None:
    stability = state.stability
    if not stability.conservative:
        return None
    since = stability.since_wall
    return ConservativeStatus.of(stability, since=rfc3339(since), age_s=facts.age_s(since))
