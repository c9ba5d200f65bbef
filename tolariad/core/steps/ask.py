"""The order that starts training, the script of the steps to run again, and whether step reports may wait.

Invariants: the script contains the steps after the checkpoint up to the last durable one, each once, in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol, cast

from tolariad.core.architecture import words as architecture
from tolariad.core.architecture.slice import is_held_at
from tolariad.core.base import Event
from tolariad.core.boundary.order_words import AnyBoundaryOrder
from tolariad.core.boundary.words import BoundaryOrderActed
from tolariad.core.checkpoints import words as ck
from tolariad.core.checkpoints.slice import HasCheckpoints
from tolariad.core.health.slice import HasHealth
from tolariad.core.rates import words as lr
from tolariad.core.rates.slice import HasRates
from tolariad.core.rollback import words as rollback
from tolariad.core.run import limit_ask
from tolariad.core.run.limit_ask import RunAndProgress
from tolariad.core.run.slice import HasRun
from tolariad.core.snapshots import words as snapshots
from tolariad.core.steps import script_words as sc
from tolariad.core.steps import words as steps
from tolariad.core.steps.branches import Branches
from tolariad.core.steps.slice import HasProgress
from tolariad.core.vocabulary import Unknown

SHORT_STEP_NS: Final = 5_000_000


class ReadsSteps(HasRun, HasProgress, HasCheckpoints, HasRates, HasHealth, Protocol):
    """The slices that the order to train depends on."""


def script_from_journal(
    events: Iterable[Event | Unknown],
    checkpoint: ck.CheckpointRef | None,
    branch: int = 0,
    branches: Branches | None = None,
) -> sc.Script:
    """Return the script of a re-run from `checkpoint` (None: from the run's beginning). Other events are ignored.

    `events` begin with the one that began the checkpoint. They begin with that of an older checkpoint if this one does
    not contain every boundary order that acted before it. `branch`: the branch of the first event. Of branches
    that were left, only the part on the current line of `branches` counts.
    """
    branches = branches or Branches()
    position = (checkpoint.epoch, checkpoint.batch) if checkpoint else (0, 0)
    first_step = checkpoint.step + 1 if checkpoint else 1
    script_steps: list[sc.ScriptStep] = []
    validations: dict[int, dict[str, float]] = {}
    skips: list[steps.StepSkipped] = []
    orders: list[sc.ScriptOrder] = []
    changes: list[sc.ScriptChange] = []
    ended = 0
    for event in events:
        match event:
            case ck.CheckpointBegun() | snapshots.SnapshotBegun():
                branch = event.branch
                if branches.holds_position(branch, event.epoch_finished + 1, 0):
                    ended = max(ended, event.epoch_finished)
            case rollback.RolledBack():
                branch = event.branch
                # Earlier orders are in the checkpoint itself, or were undone by the rollback.
                is_own = checkpoint is not None and event.checkpoint == checkpoint.id
                orders = _within(orders, 0 if is_own else event.orders)
            case lr.RatesRestored():
                orders = _within(orders, event.orders)
            case steps.StepCompleted(step=step) if not branches.holds_step(event.branch, step):
                pass
            case steps.StepSkipped(epoch=epoch, batch=batch) if not branches.holds_position(event.branch, epoch, batch):
                pass
            case steps.ValidationFinished(epoch=epoch) if not branches.holds_position(branch, epoch + 1, 0):
                pass
            # At the fork itself the target's own count decides: it may contain the order, or be from before it.
            case BoundaryOrderActed(applied_before_step=before) if not branches.holds_step(branch, before - 1):
                pass
            case architecture.ArchitectureChanged() if not _is_on_line(branches, branch, event):
                pass
            case architecture.ArchitectureChanged(applied_before_step=before, epoch_ended=of_epoch):
                if checkpoint is None or not is_held_at(before, of_epoch, checkpoint.step, checkpoint.epoch):
                    changes.append(sc.ScriptChange(event.number, event.name, event.arguments, before, of_epoch))
            case steps.StepCompleted(step=step) if step == first_step + len(script_steps):
                numbers = (event.loss, event.grad_norm, event.lr, event.rates)
                script_steps.append(sc.ScriptStep(step, *numbers, event.data))
            case steps.StepSkipped(epoch=epoch, batch=batch) if (epoch, batch) > position:
                skips.append(event)
            case steps.ValidationFinished(epoch=epoch):
                validations[epoch] = event.metrics
            case steps.EpochFinished(epoch=epoch):
                ended = epoch if branches.holds_position(branch, epoch + 1, 0) else ended
            case BoundaryOrderActed():
                order = cast("AnyBoundaryOrder", event.order)
                orders.append(sc.ScriptOrder(event.applied_before_step, ended, event.number, order))
            case _:
                pass
    return sc.Script(
        steps=tuple(script_steps),
        validations=validations,
        skips=tuple(skips),
        orders=tuple(orders),
        changes=tuple(changes),
    )


def _is_on_line(branches: Branches, branch: int, change: architecture.ArchitectureChanged) -> bool:
    """Return whether a change of the model, made on `branch`, is on the current line."""
    if change.epoch_ended:
        return branches.holds_position(branch, change.epoch_ended + 1, 0)
    return branches.holds_step(branch, change.applied_before_step - 1)


def _within(orders: list[sc.ScriptOrder], held: int | None) -> list[sc.ScriptOrder]:
    """Return the orders that a rollback's target contains; all if that is not known (None)."""
    return orders if held is None else [one for one in orders if one.number <= held]


def train_from(state: ReadsSteps, checkpoint: ck.CheckpointRef | None) -> ck.TrainFrom:
    """Return the order that starts the training."""
    progress = state.progress
    return ck.TrainFrom(
        checkpoint=checkpoint,
        epochs=limit_ask.last_epoch(state),
        durable_step=progress.step,
        epoch_started=progress.epoch_started,
        epoch_validated=progress.epoch_validated,
        epoch_finished=progress.epoch_finished,
        epoch_to_keep=limit_ask.epoch_to_keep(state),
        last_step=limit_ask.last_step(state),
        parent=state.run.parent if checkpoint is None else None,
        quarantined=state.quarantine.batches,
        tell_rates=state.rates.stale,
        metrics=progress.metric_names,
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
