"""The order that starts training, the script of the steps to run again, and whether step reports may wait.

Invariants: the script contains the steps after the checkpoint up to the last durable one, each once, in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.steps.branches import Branches
from tolariad.core.messages.vocabulary import Unknown
from tolariad.core.queries import run_limit
from tolariad.core.queries.run_limit import RunAndProgress

SHORT_STEP_NS: Final = 5_000_000


class ReadsSteps(st.HasRun, st.HasProgress, st.HasCheckpoints, st.HasRates, st.HasHealth, st.HasStages, Protocol):
    """The slices that the order to train depends on."""


def script_from_journal(
    events: Iterable[m.Event | Unknown],
    checkpoint: m.CheckpointRef | None,
    branch: int = 0,
    branches: Branches | None = None,
) -> m.Script:
    """Return the script of a re-run from `checkpoint` (None: from the run's beginning). Other events are ignored.

    `events` begin with the one that began the checkpoint. They begin with that of an older checkpoint if this one does
    not contain every boundary order that acted before it. `branch`: the branch of the first event. Of branches
    that were left, only the part on the current line of `branches` counts.
    """
    branches = branches or Branches()
    position, first_step = ((checkpoint.epoch, checkpoint.batch), checkpoint.step + 1) if checkpoint else ((0, 0), 1)
    script_steps: list[m.ScriptStep] = []
    validations, within = dict[int, dict[str, float]](), dict[int, dict[str, float]]()
    skips: list[m.StepSkipped] = []
    orders: list[m.ScriptOrder] = []
    changes: list[m.ScriptChange] = []
    digests: dict[int, m.ScriptDigest] = {}
    ended = 0
    for event in events:
        match event:
            case m.CheckpointBegun() | m.SnapshotBegun():
                branch = event.branch
                if branches.holds_position(branch, event.epoch_finished + 1, 0):
                    ended = max(ended, event.epoch_finished)
            case m.RolledBack():
                branch = event.branch
                # Earlier orders are in the checkpoint itself, or were undone by the rollback.
                is_own = checkpoint is not None and event.checkpoint == checkpoint.id
                if is_own or _is_living(branches, branch):
                    orders = _within(orders, 0 if is_own else event.orders)
            case m.RatesRestored() if _is_living(branches, branch):
                orders = _within(orders, event.orders)
            case _ if _is_given_up(branches, branch, event):
                pass
            case m.ArchitectureChanged(applied_before_step=before, epoch_ended=of_epoch):
                if checkpoint is None or not st.is_held_at(before, of_epoch, checkpoint.step, checkpoint.epoch):
                    changes.append(m.ScriptChange(event.number, event.name, event.arguments, before, of_epoch))
            case m.StepCompleted(step=step) if step == first_step + len(script_steps):
                script_steps.append(m.ScriptStep(step, event.loss, event.grad_norm, event.lr, event.rates, event.data))
            case m.ParametersDigested(step=step, checkpoint="") if step >= first_step:
                digests[step] = m.ScriptDigest(step, event.method, event.tensors)
            case m.StepSkipped(epoch=epoch, batch=batch) if (epoch, batch) > position:
                skips.append(event)
            case m.ValidationFinished(epoch=epoch, batch=0):
                validations[epoch] = event.metrics
            case m.ValidationFinished(step=step):
                within[step] = event.metrics
            case m.EpochFinished(epoch=epoch):
                ended = epoch if branches.holds_position(branch, epoch + 1, 0) else ended
            case m.OrderActed():
                orders.append(m.ScriptOrder(event.applied_before_step, ended, event.number, event.to_repeat))
            case _:
                pass
    return m.Script(
        steps=tuple(script_steps),
        validations=validations,
        within=within,
        skips=tuple(skips),
        orders=tuple(orders),
        changes=tuple(changes),
        digests=tuple(digests.values()),
    )


def _is_given_up(branches: Branches, branch: int, event: m.Event | Unknown) -> bool:
    """Return whether an event, made on `branch`, is of a part that the current line does not have."""
    match event:
        case m.StepCompleted(step=step) | m.ParametersDigested(step=step):
            return not branches.holds_step(event.branch, step)
        case m.StepSkipped(epoch=epoch, batch=batch):
            return not branches.holds_position(event.branch, epoch, batch)
        case m.ValidationFinished():
            return not _is_held(branches, branch, event)
        # At the fork itself the target's own count decides: it may contain the order, or be from before it.
        case m.OrderActed(applied_before_step=before):
            return not branches.holds_step(branch, before - 1)
        case m.ArchitectureChanged():
            return not _is_on_line(branches, branch, event)
        case _:
            return False


def _is_held(branches: Branches, branch: int, validation: m.ValidationFinished) -> bool:
    """Return whether a validation, made on `branch`, is on the current line."""
    if validation.batch:
        return branches.holds_step(branch, validation.step)
    return branches.holds_position(branch, validation.epoch + 1, 0)


def _is_living(branches: Branches, branch: int) -> bool:
    """Return whether anything of the branch is on the current line. One that a trial left may live again."""
    return branches.holds_position(branch, 0, 0)


def _is_on_line(branches: Branches, branch: int, change: m.ArchitectureChanged) -> bool:
    """Return whether a change of the model, made on `branch`, is on the current line."""
    if change.epoch_ended:
        return branches.holds_position(branch, change.epoch_ended + 1, 0)
    return branches.holds_step(branch, change.applied_before_step - 1)


def _within(orders: list[m.ScriptOrder], held: int | None) -> list[m.ScriptOrder]:
    """Return the orders that a rollback's target contains; all if that is not known (None)."""
    return orders if held is None else [one for one in orders if one.number <= held]


def train_from(state: ReadsSteps, checkpoint: m.CheckpointRef | None) -> m.TrainFrom:
    """Return the order that starts the training."""
    progress = state.progress
    return m.TrainFrom(
        checkpoint=checkpoint,
        epochs=run_limit.last_epoch(state),
        durable_step=progress.step,
        epoch_started=progress.epoch_started,
        epoch_validated=progress.epoch_validated,
        epoch_finished=progress.epoch_finished,
        epoch_to_keep=run_limit.epoch_to_keep(state),
        step_to_keep=run_limit.step_to_keep(state),
        last_step=run_limit.last_step(state),
        tokens_left=run_limit.tokens_left(state),
        parent=state.run.parent if checkpoint is None else None,
        quarantined=state.quarantine.batches,
        tell_rates=state.rates.stale,
        metrics=progress.metric_names,
        stages=state.stages.begun,
    )


def may_wait(state: RunAndProgress) -> bool:
    """Return whether step reports may be collected before they are written (`journal.sync`).

    `batch`: always. `auto`: if recent steps took less than 5 ms; one frame each would be hundreds of gigabytes a day.
    """
    if state.run.policy.sync != "auto":
        return state.run.policy.sync == "batch"
    speed = state.progress.speed
    steps_measured = speed.mid_step - speed.old_step
    return steps_measured > 0 and (speed.mid_mono - speed.old_mono) < steps_measured * SHORT_STEP_NS
