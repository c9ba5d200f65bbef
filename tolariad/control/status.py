"""The status of a run: one flat value, made from the folded state and the few facts that only a live daemon has.

Promises: a pure function. The fields are the same over the socket, with `--json`, and without a daemon (`live` false).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tolariad.core.checkpoints.catalogue_slice import none_left
from tolariad.core.plain import finite, number_state, rfc3339
from tolariad.core.run import limit_ask as limits
from tolariad.core.run.slice import TERMINAL, TRAINING, Phase
from tolariad.core.said import SaidEntry
from tolariad.core.sentences import sentence
from tolariad.core.state import RunState
from tolariad.core.steps.slice import speed_steps_s

_NS: Final = 1e9


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """The trainer's last heartbeat, from the shared page. `waiting`: the trainer waits at the gate."""

    step: int
    age_s: float
    activity: str
    waiting: bool = False


class LiveFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that are not in the state: clocks, shared page, journal writer.

    `write_age_s`: of a write in flight, or 0.
    """

    pid: int
    wall_ns: int
    mono_ns: int
    heartbeat: Heartbeat | None = None
    segment: int = 0
    journal_failed: str | None = None
    write_age_s: float = 0.0


class CheckpointStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The newest usable checkpoint. `given_up`: why a later one was not completed, or None."""

    id: str
    step: int
    epoch: int
    size: int
    time: str
    age_s: float | None
    given_up: str | None = None


class JournalStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The end of the journal: last event, segment, why writing failed (or None), age of a write in flight."""

    seq: int
    segment: int
    failed: str | None
    write_age_s: float | None


class TrainerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The current or last trainer process. `deaths` counts those in a row without a new durable step."""

    alive: bool
    pid: int
    incarnation: int
    deaths: int
    deaths_total: int
    last_death: str | None
    activity: str | None
    waiting: bool
    heartbeat_step: int | None
    heartbeat_age_s: float | None


class ConservativeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Conservative mode: since when, for how long, why, and how many healthy epochs have passed since."""

    since: str
    age_s: float | None
    why: str
    healthy_epochs: int


class MemoryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the run holds more than its share of memory, so the trainer keeps no memory for later."""

    since: str
    age_s: float | None
    budget: str
    percent: float
    limit: float


class EmergencyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The highest emergency level since the last healthy epoch, or since an operator resumed the run."""

    level: str
    why: str


class SaidStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A notable action, as a sentence.

    `number` counts all actions from 1; `start` is the start of the daemon it is from.
    """

    number: int
    start: int
    seq: int
    time: str
    event: str
    text: str


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The reply of `Status`, and the output of `tolaria status --json`.

    A number that is not finite is null; the field `..._state` beside it holds `nan`, `inf` or `-inf`. `time` is now or,
    without a daemon, the time of the last step or of the run's start.
    """

    name: str
    run_id: str
    dir: str
    task: str
    phase: str
    live: bool
    pid: int | None
    time: str
    epoch: int
    epochs: int
    step: int
    steps_total: int | None
    steps_per_epoch: int | None
    loss: float | None
    loss_state: str | None
    grad_norm: float | None
    grad_norm_state: str | None
    lr: float | None
    lr_state: str | None
    train_loss: float | None
    train_loss_state: str | None
    validation_loss: float | None
    validation_loss_state: str | None
    accuracy: float | None
    accuracy_state: str | None
    best_accuracy: float | None
    steps_per_s: float | None
    eta_s: float | None
    ordered: str | None
    frozen: str | None
    last_error: str | None
    rerunning_to: int | None
    rng_seed: int
    starts: int
    checkpoint: CheckpointStatus | None
    checkpoint_none: str | None
    journal: JournalStatus
    trainer: TrainerStatus | None
    conservative: ConservativeStatus | None
    memory: MemoryStatus | None
    emergency: EmergencyStatus | None
    disk_low: str | None
    said: tuple[SaidStatus, ...] = ()


def run_status(state: RunState, directory: str, facts: LiveFacts | None, *, segment: int = 0) -> RunStatus:
    """Return the status of `state`. `facts` is None without a daemon; there are then no pid, speed and ages.

    `segment` is the journal's newest segment; it is used if `facts` is None.
    """
    progress, run = state.progress, state.run
    failed = facts.journal_failed if facts else None
    phase = Phase.FROZEN if failed and run.phase not in TERMINAL else run.phase
    total = limits.steps_in_all(state)
    speed = speed_steps_s(progress, facts.mono_ns) if facts and phase in TRAINING else None
    metric = progress.metrics.get
    return RunStatus(
        name=run.name,
        run_id=run.run_id,
        dir=directory,
        task=run.task,
        phase=phase.value,
        live=facts is not None,
        pid=facts.pid if facts else None,
        time=rfc3339(facts.wall_ns if facts else max(progress.last_wall, run.started_wall)),
        epoch=progress.epoch,
        epochs=limits.epochs_in_all(state),
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
        steps_per_s=speed,
        eta_s=(total - progress.step) / speed if total and speed else None,
        ordered=_ordered(state),
        frozen=failed or (run.why if phase is Phase.FROZEN else None),
        last_error=_last_error(state, failed),
        rerunning_to=state.rerun.open.last if state.rerun.open else None,
        rng_seed=run.rng_seed,
        starts=run.starts,
        checkpoint=_checkpoint(state, facts),
        checkpoint_none=_no_checkpoint(state),
        journal=_journal(state, facts, segment),
        trainer=_trainer(state, facts),
        conservative=_conservative(state, facts),
        emergency=_emergency(state),
        memory=_memory(state, facts),
        disk_low=state.disk.words if state.disk.low is not None else None,
        said=tuple(_said(one) for one in state.said.latest),
    )


def _number(name: str, value: float | None) -> dict[str, Any]:
    """Return the two fields of a number that may not be finite."""
    return {name: finite(value), f"{name}_state": number_state(value)}


def _said(line: SaidEntry) -> SaidStatus:
    event = line.event
    return SaidStatus(
        number=line.number,
        start=line.start,
        seq=line.seq,
        time=rfc3339(event.wall),
        event=type(event).__name__,
        text=sentence(event),
    )


def _ordered(state: RunState) -> str | None:
    """Return the order that is accepted but not carried out yet."""
    if state.run.phase is Phase.STOPPING:
        return "stop"
    return "pause" if state.run.pause is not None and state.run.phase is not Phase.PAUSED else None


def _last_error(state: RunState, failed: str | None) -> str | None:
    if failed or state.run.phase is Phase.FAILED:
        return failed or state.run.why
    return f"the trainer ended: {state.trainer.last_death}" if state.trainer.last_death else None


def _checkpoint(state: RunState, facts: LiveFacts | None) -> CheckpointStatus | None:
    newest = state.checkpoints.newest
    if newest is None:
        return None
    return CheckpointStatus(
        id=newest.id,
        step=newest.step,
        epoch=newest.epoch,
        size=newest.size,
        time=rfc3339(newest.wall),
        age_s=max(0.0, (facts.wall_ns - newest.wall) / _NS) if facts else None,
        given_up=state.checkpoints.given_up or None,
    )


def _no_checkpoint(state: RunState) -> str | None:
    """Return what happened to the checkpoints if none is usable any more, else None."""
    held = state.checkpoints
    lost = none_left(held.catalogue, held.removed)
    given_up = f"; the last one was given up: {held.given_up}" if held.given_up else ""
    return f"{lost}{given_up}" if lost else None


def _journal(state: RunState, facts: LiveFacts | None, segment: int) -> JournalStatus:
    if facts is None:
        return JournalStatus(seq=state.seq, segment=segment, failed=None, write_age_s=None)
    return JournalStatus(
        seq=state.seq, segment=facts.segment, failed=facts.journal_failed, write_age_s=facts.write_age_s
    )


def _trainer(state: RunState, facts: LiveFacts | None) -> TrainerStatus | None:
    trainer = state.trainer
    if not trainer.incarnation:
        return None
    beat = facts.heartbeat if facts else None
    return TrainerStatus(
        alive=trainer.alive and facts is not None,
        pid=trainer.pid,
        incarnation=trainer.incarnation,
        deaths=trainer.deaths,
        deaths_total=trainer.deaths_total,
        last_death=trainer.last_death or None,
        activity=beat.activity if beat else None,
        waiting=beat.waiting if beat else False,
        heartbeat_step=beat.step if beat else None,
        heartbeat_age_s=beat.age_s if beat else None,
    )


def _emergency(state: RunState) -> EmergencyStatus | None:
    emergency = state.emergency
    return EmergencyStatus(level=emergency.level.value, why=emergency.why) if emergency.level is not None else None


def _memory(state: RunState, facts: LiveFacts | None) -> MemoryStatus | None:
    pressure = state.overruns.memory
    if pressure is None:
        return None
    return MemoryStatus(
        since=rfc3339(pressure.since_wall),
        age_s=max(0.0, (facts.wall_ns - pressure.since_wall) / _NS) if facts else None,
        budget=pressure.budget,
        percent=pressure.percent,
        limit=pressure.limit,
    )


def _conservative(state: RunState, facts: LiveFacts | None) -> ConservativeStatus | None:
    stability = state.stability
    if not stability.conservative:
        return None
    since = stability.since_wall
    return ConservativeStatus(
        since=rfc3339(since),
        age_s=max(0.0, (facts.wall_ns - since) / _NS) if facts else None,
        why=stability.why,
        healthy_epochs=stability.healthy_epochs,
    )
