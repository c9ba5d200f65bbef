"""What a trainer is to begin from, and the script of the steps that it runs again, cut from the journal.

Invariants: only the steps after the checkpoint and up to the last durable one are in the script, each once, in order. It must
not know: how steps are run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, cast

from tolariad.core.architecture import words as architecture
from tolariad.core.architecture.slice import is_held_at
from tolariad.core.boundary.order_words import AnyBoundaryOrder
from tolariad.core.boundary.words import BoundaryOrderActed
from tolariad.core.checkpoints import words as ck
from tolariad.core.checkpoints.slice import HasCheckpoints
from tolariad.core.health.quarantine_slice import HasQuarantine
from tolariad.core.rates import words as lr
from tolariad.core.rates.slice import HasRates
from tolariad.core.rollback import words as rollback
from tolariad.core.run import limit_ask
from tolariad.core.run.limit_slice import HasLimits
from tolariad.core.run.slice import HasRun
from tolariad.core.snapshots import words as snapshots
from tolariad.core.steps import script_words as sc
from tolariad.core.steps import words as steps
from tolariad.core.steps.branches import Lines
from tolariad.core.steps.slice import HasProgress
from tolariad.core.vocabulary import Event, Unknown


class Reads(HasRun, HasProgress, HasCheckpoints, HasLimits, HasRates, HasQuarantine, Protocol):
    """What the order to train depends on."""


def cut_script(
    events: Iterable[Event | Unknown], checkpoint: ck.CheckpointRef | None, branch: int = 0, lines: Lines | None = None
) -> sc.Script:
    """What a re-run needs of the events behind a checkpoint's begin (None: the run's), in order; the rest passes by.

    They may begin sooner, with an older checkpoint's begin, if this one does not hold every boundary order that acted
    before it. `branch` is the first event's; of branches that were left only what is on the living line of `lines` counts.
    """
    lines = lines or Lines()
    position = (checkpoint.epoch, checkpoint.batch) if checkpoint else (0, 0)
    first_step = checkpoint.step + 1 if checkpoint else 1
    script_steps: list[sc.ScriptStep] = []
    validations: list[sc.ScriptValidation] = []
    skips: list[sc.ScriptSkip] = []
    orders: list[sc.ScriptOrder] = []
    changes: list[sc.ScriptChange] = []
    ended = 0
    for event in events:
        match event:
            case ck.CheckpointBegun() | snapshots.SnapshotBegun():
                branch = event.branch
                if lines.holds_position(branch, event.epoch_finished + 1, 0):
                    ended = max(ended, event.epoch_finished)
            case rollback.RolledBack():
                branch = event.branch
                # What acted before is in the checkpoint itself, or was gone back from.
                is_own = checkpoint is not None and event.checkpoint == checkpoint.id
                orders = _within(orders, 0 if is_own else event.orders)
            case lr.RatesRestored():
                orders = _within(orders, event.orders)
            case steps.StepCompleted(step=step) if not lines.holds_step(event.branch, step):
                pass
            case steps.StepSkipped(epoch=epoch, batch=batch) if not lines.holds_position(event.branch, epoch, batch):
                pass
            case steps.ValidationFinished(epoch=epoch) if not lines.holds_position(branch, epoch + 1, 0):
                pass
            # At the fork itself the target's own count decides: it may hold the order, or lie before it.
            case BoundaryOrderActed(applied_before_step=before) if not lines.holds_step(branch, before - 1):
                pass
            case architecture.ArchitectureChanged() if not _is_on_line(lines, branch, event):
                pass
            case architecture.ArchitectureChanged(applied_before_step=before, epoch_ended=of_epoch):
                if checkpoint is None or not is_held_at(before, of_epoch, checkpoint.step, checkpoint.epoch):
                    changes.append(sc.ScriptChange(event.number, event.name, event.arguments, before, of_epoch))
            case steps.StepCompleted(step=step) if step == first_step + len(script_steps):
                script_steps.append(sc.ScriptStep(step, event.loss, event.grad_norm, event.lr, event.rates))
            case steps.StepSkipped(epoch=epoch, batch=batch) if (epoch, batch) > position:
                skips.append(sc.ScriptSkip(event.step, epoch, batch, event.loss, event.grad_norm, event.reason))
            case steps.ValidationFinished():
                validations.append(sc.ScriptValidation(event.epoch, event.metrics))
            case steps.EpochFinished(epoch=epoch):
                ended = epoch if lines.holds_position(branch, epoch + 1, 0) else ended
            case BoundaryOrderActed():
                order = cast("AnyBoundaryOrder", event.order)
                orders.append(sc.ScriptOrder(event.applied_before_step, ended, event.number, order))
            case _:
                pass
    return sc.Script(
        steps=tuple(script_steps),
        validations=tuple(validations),
        skips=tuple(skips),
        orders=tuple(orders),
        changes=tuple(changes),
    )


def _is_on_line(lines: Lines, branch: int, change: architecture.ArchitectureChanged) -> bool:
    """Is a change of the model, made on `branch`, part of the living line?"""
    if change.epoch_ended:
        return lines.holds_position(branch, change.epoch_ended + 1, 0)
    return lines.holds_step(branch, change.applied_before_step - 1)


def _within(orders: list[sc.ScriptOrder], held: int | None) -> list[sc.ScriptOrder]:
    """Those that a rollback's target holds; None: it did not say."""
    return orders if held is None else [one for one in orders if one.number <= held]


def train_from(state: Reads, checkpoint: ck.CheckpointRef | None) -> ck.TrainFrom:
    """The one order a trainer runs by."""
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
    )
