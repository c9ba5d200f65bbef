"""The rules of the safety window: masks that act are watched, and stay, are lifted, or are undone by a rollback.

The trainer watches gradient norms, speed and memory, and reports once. The accuracy is judged here, at validations.
Masks pass if the trainer reported no exceeded limit and a validation was good enough.

| limit | what follows |
|---|---|
| accuracy, gradient norm | a rollback to the checkpoint before the masks |
| speed, memory | the masks are lifted at the next boundary, or a rollback (`prune.safety.*_action`) |
| a finding of the detector that calls for a rollback | that rollback, to the checkpoint before the masks |

In each case the masks are rejected: they are never applied again. No batch is blamed. A window ends without a verdict
if a rollback of another cause leads to a state without the masks.
"""

from __future__ import annotations

from typing import Protocol

from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core.calc.pruning.phase import PruningPhase
from tolariad.core.calc.pruning.plan import PrunePlan
from tolariad.core.calc.pruning.schedule import cap_at, parameters_allowed
from tolariad.core.calc.pruning.verdict import Trip, WindowAction, accuracy_of, accuracy_trip
from tolariad.core.decision import Decision
from tolariad.core.engine import At


class Reads(q.ReadsPruning, q.ReadsHealth, Protocol):
    """The slices that the rules of the window read."""


def watched(state: Reads, report: m.PruneWatchReport, _: At[Reads]) -> Decision | None:
    """Record what the trainer measured in the window, once."""
    window = state.pruning.window
    if window is None or window.cycle != report.cycle or window.is_watched:
        return None
    return Decision((m.PruneWatched.of(report),))


def judge_watched(state: Reads, event: m.PruneWatched, _: At[Reads]) -> Decision | None:
    """Reject the masks if a limit was exceeded; else they pass when their accuracy is known."""
    return _rejected(state, event.trips) if event.trips else _passed(state)


def judge_accuracy(state: Reads, event: m.ValidationFinished, at: At[Reads]) -> Decision | None:
    """Reject masks after which the accuracy is lower than repeated validations explain."""
    window = at.was.pruning.window
    if window is None or window.accuracy_before is None:
        return None
    accuracy = accuracy_of(event.metrics, window.loss_before)
    if accuracy is None:
        return None
    # Masks that act are judged although pruning was disabled since. Then the configured margin is not known here.
    plan = state.run.policy.prune or PrunePlan()
    if event.step < window.since_step + window.grace_steps:
        return None
    trip = accuracy_trip(plan, window.spread, window.accuracy_before, accuracy, event.samples)
    return _passed(state) if trip is None else _rejected(state, (trip,))


def _passed(state: Reads) -> Decision | None:
    window = state.pruning.window
    if window is None or not window.is_watched:
        return None
    if window.accuracy is None and window.accuracy_before is not None:
        return None
    passed = m.MaskSetPassed(
        cycle=window.cycle,
        accuracy_before=window.accuracy_before,
        accuracy=window.accuracy,
        loss_before=window.loss_before,
    )
    return Decision((passed,))


def _rejected(state: Reads, trips: tuple[Trip, ...]) -> Decision | None:
    window = state.pruning.window
    if window is None:
        return None
    goes_back = any(one.action is WindowAction.ROLLBACK for one in trips)
    event = m.MaskSetRejected(
        cycle=window.cycle,
        sha256=window.sha256,
        trips=trips,
        action=WindowAction.ROLLBACK if goes_back else WindowAction.RELEASE,
        checkpoint=window.pinned if goes_back else "",
        why=", ".join(_in_words(one, window.loss_before) for one in trips),
    )
    return Decision((event,))


def _in_words(trip: Trip, loss_before: float | None) -> str:
    worse = "the accuracy fell by {:.4g}" if loss_before is None else "the loss rose by {:.4g} of what it was"
    what = {
        "accuracy_drop_threshold": worse,
        "gradient_norm_threshold": "the gradient norm grew {:.3g} times",
        "memory_usage_threshold": "the share of memory in use is {:.3g}",
        "training_speed_threshold": "training has {:.3g} of its former speed",
    }.get(trip.threshold, f"{trip.threshold} is {{:.4g}}")
    return f"{what.format(trip.measured)} (limit {trip.limit:.4g})"


def blame(state: Reads, event: m.EmergencyRaised, _: At[Reads]) -> Decision | None:
    """Reject the masks whose window the detector's rollback falls into. That rollback undoes them."""
    window = state.pruning.window
    if window is None or event.actor is not None or event.follows is not m.Follows.ROLLBACK:
        return None
    rejected = m.MaskSetRejected(
        cycle=window.cycle, sha256=window.sha256, trips=(), action=WindowAction.ROLLBACK, why=event.why
    )
    return Decision((rejected,))


def undo_rejected(state: Reads, event: m.MaskSetRejected, _: At[Reads]) -> Decision | None:
    """Go back to the checkpoint before rejected masks, or lift them at the next boundary."""
    if event.action is WindowAction.RELEASE:
        return _release(state, event.cycle, event.why)
    target = q.restorable(state, event.checkpoint)
    if target is None or not q.may_begin(state):
        # Without a checkpoint, the rollback of an emergency does it.
        return _release(state, event.cycle, event.why) if event.checkpoint else None
    why = f"the masks of cycle {event.cycle} proved harmful: {event.why}"
    if q.may_go_back(state):
        return Decision((q.rollback_begun(state, target, why, m.RefusalPolicy.OLDER),))
    asked = m.RollbackRequested(
        checkpoint=target.id,
        step=target.step,
        epoch=target.epoch,
        batch=target.batch,
        otherwise=m.RefusalPolicy.OLDER,
    )
    return Decision((asked,)) if state.rollbacks.asked is None else None


def release_untimely(state: Reads, event: m.OrderActed, _: At[Reads]) -> Decision | None:
    """Lift masks if pruning was disabled, or the caps were lowered, after they were ordered."""
    if not isinstance(event.order, m.MaskUnits):
        return None
    cycle = event.order.cycle
    plan, pruning = state.run.policy.prune, state.pruning
    if plan is None or pruning.override is PruningPhase.DISABLED:
        return _release(state, cycle, "pruning was disabled after they were ordered")
    most = parameters_allowed(1.0, cap_at(plan, state.progress.epoch_finished), pruning.total_parameters, 0)
    if pruning.total_parameters and pruning.pruned_parameters > most:
        return _release(state, cycle, "the cap was lowered after they were ordered")
    return None


def release_left(state: Reads, _: m.RolledBack | m.RollbackAborted, __: At[Reads]) -> Decision | None:
    """Lift rejected masks that are still in force after a rollback."""
    found = next((one for one in state.pruning.sets if state.pruning.rejection_of(one.sha256)), None)
    return None if found is None else _release(state, found.cycle, "they were rejected, and no rollback undid them")


def _release(state: Reads, cycle: int, why: str) -> Decision | None:
    is_waiting = any(order.cycle == cycle for _, order in state.boundary.of_kind(m.ReleaseMasks))
    if is_waiting or state.pruning.set_of(cycle) is None:
        return None
    return Decision((m.OrderGiven(order=m.ReleaseMasks(cycle=cycle), why=why),))


def compact_due(state: Reads, _: m.MaskSetPassed | m.RolledBack, __: At[Reads]) -> Decision | None:
    """Order a compaction after as many sets of masks as `prune.compact_every` says.

    A rollback may take it back, to masks whose window has ended: then nothing else would order it again. An operator
    who disabled pruning keeps the masked model.
    """
    plan, pruning = state.run.policy.prune, state.pruning
    if plan is None or not plan.compact_every or len(pruning.sets) < plan.compact_every:
        return None
    if pruning.override is PruningPhase.DISABLED or any(pruning.rejection_of(one.sha256) for one in pruning.sets):
        return None
    ordered = q.compaction_to_order(state)
    return None if isinstance(ordered, m.Refusal) else Decision((ordered,))
